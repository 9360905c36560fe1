"""Print the tasks of the installed reasoning-gym whose verifier gives another row's answer the full reward.

    python examples/tasks/reasoning_gym_survey.py

The table of README.md is its output: 128 rows of each task with its default options. It takes half an hour.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reasoning_gym_check import refusal_of, tried
from reasoning_gym_data import GymSettings, prepare_reasoning_gym
from reasoning_gym_reward import library

from grpo_verl_ext.tasks.folders import PreparedFolderError

NEEDS_OPTIONS = "composite"
"""Mixes other tasks, which are named in its options."""


def line_of(task: str, of_task: Mapping[str, Any]) -> str:
    """Return the table's line of a task, empty where there is nothing to say."""
    if not (of_task["full"] or of_task["without_answer"]):
        return ""
    needs = "yes" if refusal_of({task: of_task}) else ""
    answer = "none" if of_task["without_answer"] else ""
    return f"| `{task}` | {answer} | {tried(of_task)} | {of_task['full']} of {of_task['tried']} | {needs} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=128, help="of each task (128)")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="only these")
    given = parser.parse_args()
    tasks = given.tasks or sorted(set(library().factory.DATASETS) - {NEEDS_OPTIONS})
    print(f"reasoning-gym {version('reasoning-gym')}, {len(tasks)} tasks, {given.rows} rows of each\n")
    print("| task | answer | tried | full reward | needs the option |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            settings = GymSettings(task, {}, train=given.rows - 1, test=1, seed=1, system="")
            try:
                made = prepare_reasoning_gym(
                    settings, Path(folder, task), force=False, accept_other_answers=True
                )
            except PreparedFolderError as error:
                print(f"{task} is left out: {error}", file=sys.stderr)
                continue
            if line := line_of(task, made.manifest["found"]["verifier"][task]):
                print(line, flush=True)


if __name__ == "__main__":
    main()
