"""Print the tasks of the installed reasoning-gym without answers, or whose verifier takes another row's.

    python examples/tasks/reasoning_gym_survey.py [TASK …]

The table of README.md is its output: 128 rows of each task with its default options. It takes half an hour.
"""

import sys
import tempfile
from pathlib import Path

from reasoning_gym_check import refusal_of
from reasoning_gym_data import GymSettings, prepare_reasoning_gym
from reasoning_gym_reward import library

from grpo_verl_ext.tasks.folders import PreparedFolderError

ROWS = 128


def main() -> None:
    # composite mixes other tasks, which its options name
    tasks = sys.argv[1:] or sorted(set(library().factory.DATASETS) - {"composite"})
    print("| task | answer | full reward for another row's | needs the option |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            of = GymSettings(task, {}, train=ROWS - 1, test=1, seed=1, system="")
            try:
                made = prepare_reasoning_gym(of, Path(folder, task), force=False, accept_other_answers=True)
            except PreparedFolderError as error:
                print(f"{task} is left out: {error}", file=sys.stderr)
                continue
            found = made.manifest["found"]["verifier"]
            n, needs = found[task], "yes" if refusal_of(found) else ""
            if n["full"] or n["without_answer"]:
                answer = "none" if n["without_answer"] else ""
                print(f"| `{task}` | {answer} | {n['full']} of {n['tried']} | {needs} |", flush=True)


if __name__ == "__main__":
    main()
