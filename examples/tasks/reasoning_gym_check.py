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
"""Task whose entries have no answer → the one in their metadata. Those of rush_hour and boxnet have none."""

NO_ANSWER = "I do not know"
"""Tried where no row has an answer."""

MOST_ROWS = 512
"""Of each task: the share of more is the same, and intermediate_integration takes a second for each."""

# Where a row has several right answers, another row's is one of them by accident: in reasoning-gym 0.1.25 on
# up to 8 % of the rows of n_queens, 3 % of jugs, 4 % of time_intervals, 10 % of graph_color. A verifier that
# does not read the row takes every answer (puzzle24, game_of_life_halting). That of propositional_logic reads
# it and still takes half; the constant answer "(Q ∨ P)" has the full reward in 86 % of the rows.
REFUSED_SHARE = 0.25
# Fewer are an accident in a folder of a few rows.
REFUSED_HITS = 4


def check_verifier(
    dataset: Any, entries: Sequence[Mapping[str, Any]], task: str
) -> dict[str, dict[str, Any]]:
    """Score on each row the answer of the next row that has another one.

    A row whose task has one answer only is not tried, nor are more than `MOST_ROWS` of a task.

    Returns:
        for each task, of which ``composite`` has several: ``rows``; ``without_answer``, those of no answer in
        the data; ``tried`` and ``full``, rows that another answer was scored on and that gave it the best;
        ``text``, the one tried on all rows if none has an answer, else empty.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        source = str(entry["metadata"].get("source_dataset", task))
        rows.setdefault(source, []).append(from_exact_text(exact_text(entry)))
    return {source: _check_task(dataset, of_task, source) for source, of_task in rows.items()}


def _check_task(dataset: Any, rows: list[Mapping[str, Any]], task: str) -> dict[str, Any]:
    answers = [_right_answer(row, task) for row in rows]
    known = [(row, answer) for row, answer in zip(rows, answers, strict=True) if answer is not None]
    text = "" if known else NO_ANSWER
    pairs = _with_another(known) if known else [(row, text) for row in rows]
    return {
        "rows": len(rows),
        "without_answer": sum(row["answer"] is None for row in rows),
        "tried": len(pairs[:MOST_ROWS]),
        "full": sum(_is_full(dataset, row, answer) for row, answer in pairs[:MOST_ROWS]),
        "text": text,
    }


def _right_answer(row: Mapping[str, Any], task: str) -> str | None:
    """Return the row's answer, else the example in its metadata, else None."""
    answer: str | None = row["answer"]
    if answer is not None:
        return answer.strip()
    return EXAMPLES[task](row["metadata"]).strip() if task in EXAMPLES else None


def _with_another(
    known: list[tuple[Mapping[str, Any], str]],
) -> list[tuple[Mapping[str, Any], str]]:
    """Return each row with the answer of the next one whose answer differs, the first after the last.

    Case and white space are no difference: "Yes" is right where "yes" is.
    """
    others: dict[int, str] = {}
    # from the end, twice round, so that each row passes on what it found to the row before
    for position in reversed(range(2 * len(known))):
        here, following = position % len(known), (position + 1) % len(known)
        if _plain(known[following][1]) != _plain(known[here][1]):
            others[here] = known[following][1]
        elif following in others:
            others[here] = others[following]
    return [(known[index][0], others[index]) for index in sorted(others)]


def _plain(answer: str) -> str:
    return " ".join(answer.split()).casefold()


def _is_full(dataset: Any, row: Mapping[str, Any], answer: str) -> bool:
    try:
        return BEST <= float(dataset.score_answer(answer, row)) < math.inf
    except Exception:  # noqa: BLE001  # the reward of such an answer is 0
        return False


def lines_of(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each task without answers, and one for each that takes another row's."""
    lines = []
    for task, of_task in found.items():
        if of_task["without_answer"]:
            lines.append(
                f"{task} has no answer in {of_task['without_answer']} of {of_task['rows']} rows: their "
                "ground_truth is empty, and its verifier alone decides"
            )
        if of_task["full"]:
            share = f"{of_task['full']} of {of_task['tried']} rows"
            lines.append(f"{task}: {tried(of_task)} gets the full reward in {share}")
    return lines


def tried(of_task: Mapping[str, Any]) -> str:
    """Return what was scored on the rows of a task, in words."""
    if of_task["text"]:
        return repr(of_task["text"])
    return "the example of another row" if of_task["without_answer"] else "another row's answer"


def refusal_of(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the lines of the tasks whose full reward is had without reading the row; empty if none is."""
    refused = {task: of_task for task, of_task in found.items() if _is_refused(of_task)}
    return f"reasoning-gym {version('reasoning-gym')}, {'; '.join(lines_of(refused))}" if refused else ""


def _is_refused(of_task: Mapping[str, Any]) -> bool:
    return bool(of_task["full"] >= max(REFUSED_HITS, REFUSED_SHARE * of_task["tried"]))
