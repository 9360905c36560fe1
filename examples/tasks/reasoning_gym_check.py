"""Measure whether a task's verifier of reasoning-gym tells a row's right answer from another row's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from reasoning_gym_reward import BEST, exact_text, from_exact_text

EXAMPLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "graph_color": lambda metadata: json.dumps(metadata["possible_answer"]),
    "propositional_logic": lambda metadata: str(metadata["example_answer"]),
    "rubiks_cube": lambda metadata: str(metadata["example_correct_answer"]),
}
"""Task whose rows have no answer → the one in their metadata. Those of rush_hour and boxnet have none."""
NO_ANSWER = "I do not know"
"""Tried where no row has an answer or an example."""
MOST_ROWS = 512
"""Of each task: the share of more is the same, and intermediate_integration takes a second for each."""

# Where a row has several right answers, another row's is one of them by accident: in reasoning-gym 0.1.25 on
# up to 8 % of the rows of n_queens, 3 % of jugs, 4 % of time_intervals, 10 % of graph_color. A verifier that
# does not read the row takes every answer (puzzle24, game_of_life_halting). That of propositional_logic reads
# it and still takes half; the constant answer "(Q ∨ P)" has the full reward in 86 % of the rows.
REFUSED_SHARE = 0.25
# Fewer are an accident in a folder of a few rows.
REFUSED_HITS = 4

Found = Mapping[str, Mapping[str, int]]
"""Task → ``rows``; ``without_answer``, of these; ``tried``, rows that another answer was scored on; ``full``,
those where it had the best score."""


def check_verifier(dataset: Any, entries: Sequence[Mapping[str, Any]], task: str) -> Found:
    """Score on each row the next row's answer that differs; ``composite`` has rows of several tasks."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        rows.setdefault(str(entry["metadata"].get("source_dataset", task)), []).append(entry)
    return {source: _check_task(dataset, of_task, source) for source, of_task in rows.items()}


def _check_task(dataset: Any, entries: list[Mapping[str, Any]], task: str) -> Mapping[str, int]:
    rows = [from_exact_text(exact_text(entry)) for entry in entries[:MOST_ROWS]]
    answers = [_right_answer(row, task) for row in rows]
    tried = full = 0
    for index, row in enumerate(rows):
        other = _another(answers, index)
        if other is not None:
            tried += 1
            full += _is_full(dataset, row, other)
    missing = sum(entry["answer"] is None for entry in entries)
    return {"rows": len(entries), "without_answer": missing, "tried": tried, "full": full}


def _right_answer(row: Mapping[str, Any], task: str) -> str | None:
    answer: str | None = row["answer"]
    if answer is None and task in EXAMPLES:
        answer = EXAMPLES[task](row["metadata"])
    return None if answer is None else answer.strip()


def _another(answers: list[str | None], index: int) -> str | None:
    """Return the next answer that differs in more than case and white space: "Yes" is "yes"."""
    others = [answer for answer in answers[index + 1 :] + answers[:index] if answer is not None]
    own = answers[index]
    if own is None:
        return others[0] if others else NO_ANSWER
    return next((answer for answer in others if _plain(answer) != _plain(own)), None)


def _plain(answer: str) -> str:
    return " ".join(answer.split()).casefold()


def _is_full(dataset: Any, row: Mapping[str, Any], answer: str) -> bool:
    try:
        return BEST <= float(dataset.score_answer(answer, row)) < math.inf
    except Exception:  # noqa: BLE001  # the reward of such an answer is 0
        return False


def lines_of(found: Found) -> list[str]:
    """Return a line for each task without answers, and one for each that takes another row's."""
    lines = []
    for task, n in found.items():
        other = "another row's answer"
        if n["without_answer"]:
            rows = f"{n['without_answer']} of {n['rows']} rows"
            lines.append(f"{task} has no answer in {rows}: ground_truth is empty, its verifier alone decides")
            other = f"another row's example, or {NO_ANSWER!r},"
        if n["full"]:
            lines.append(f"{task}: {other} gets the full reward in {n['full']} of {n['tried']} rows")
    return lines


def refusal_of(found: Found) -> str:
    """Return the lines of the tasks whose full reward is had without reading the row; empty if none is."""
    refused = {
        task: n for task, n in found.items() if n["full"] >= max(REFUSED_HITS, REFUSED_SHARE * n["tried"])
    }
    return f"reasoning-gym {version('reasoning-gym')}, {'; '.join(lines_of(refused))}" if refused else ""
