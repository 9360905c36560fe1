"""What a finished run's responses say, from verl's dumps: length by correctness, prompts that teach nothing.

Dumps are large and often removed. What was read from them is kept in the run's folder, and stands for them.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from grpo_verl_ext.files import write_whole
from grpo_verl_ext.runs.dumps import CorruptDumpError, Response, dump_file, read_dump
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.typed_json import SPOILED, made, typed

KEPT = "responses.json"
KEPT_FIELDS = {"measure": list, "metrics": dict[str, dict[str, float]], "samples": list}
SAMPLES = 16
"""Responses of the last validation that are kept, to be shown."""
NO_DIFFERENCE = "responses/groups_without_difference"
SHARE_RIGHT = "responses/right"


@dataclass(frozen=True)
class Measure:
    """How responses are measured."""

    unit: str
    """``tokens`` or ``characters``."""
    length: Callable[[str], int]
    right_above: float | None
    """A response is right if its score is above; None: nobody has said what is right."""

    @property
    def name(self) -> list[object]:
        """Numbers made with another measure are not these."""
        return [self.unit, self.right_above]


@dataclass(frozen=True)
class Responses:
    """What one run's dumps come to."""

    metrics: Metrics
    """By training step, as `step_metrics` names them."""
    samples: list[Response]
    """Of the last validation; the same prompts for every run that was validated on them."""
    troubles: list[str]
    """A word for each file that cannot be read; it was left in place."""


def read_responses(run: VerlRun, measure: Measure) -> Responses:
    """From a finished run's dumps, once; then from what was kept of them, which outlives the dumps."""
    file = run.folder / KEPT
    if file.exists():
        kept, name = _read_kept(file)
        if name == measure.name or kept.troubles or not run.rollouts.is_dir():
            return kept
    read = _read_dumps(run, measure)
    if not read.troubles and (read.metrics or read.samples):
        _keep(read, measure, file)
    return read


def step_metrics(rows: Iterable[Response], measure: Measure) -> dict[str, float]:
    """One training step: lengths of right and wrong responses, shares of right ones and of idle prompts.

    A length is missing where there is no such response.
    """
    rows = list(rows)
    scores = defaultdict(set)
    for row in rows:
        scores[row.prompt_id].add(row.score)
    values = {NO_DIFFERENCE: mean(len(different) == 1 for different in scores.values())}
    if measure.right_above is None:
        return values
    lengths: dict[str, list[int]] = {"right": [], "wrong": []}
    for row in rows:
        lengths["right" if row.score > measure.right_above else "wrong"].append(measure.length(row.output))
    values[SHARE_RIGHT] = len(lengths["right"]) / len(rows)
    return values | {
        f"responses/{measure.unit}/{kind}": mean(found) for kind, found in lengths.items() if found
    }


def chosen(rows: Iterable[Response]) -> list[Response]:
    """A few of them, by a hash of the prompt: no matter what was answered, or in which order."""
    return sorted(rows, key=lambda row: hashlib.sha256(row.prompt.encode()).digest())[:SAMPLES]


def _read_dumps(run: VerlRun, measure: Measure) -> Responses:
    troubles: list[str] = []

    def rows_of(folder: Path, step: int) -> list[Response]:
        file = dump_file(folder, step)
        try:
            return read_dump(file) if file.exists() else []
        except CorruptDumpError as error:
            troubles.append(str(error))
            return []

    metrics = {
        step: step_metrics(rows, measure)
        for step in range(1, run.steps + 1)
        if (rows := rows_of(run.rollouts, step))
    }
    return Responses(metrics, chosen(rows_of(run.validation, run.steps)), troubles)


def _keep(read: Responses, measure: Measure, file: Path) -> None:
    content = {
        "measure": measure.name,
        "metrics": read.metrics,
        "samples": [asdict(sample) for sample in read.samples],
    }
    write_whole(file, json.dumps(content, ensure_ascii=False) + "\n")


def _read_kept(file: Path) -> tuple[Responses, list[object]]:
    try:
        content = typed(json.loads(file.read_bytes()), KEPT_FIELDS)
        metrics = {int(step): values for step, values in content["metrics"].items()}
        samples = [made(Response, sample) for sample in content["samples"]]
        return Responses(metrics, samples, []), content["measure"]
    except SPOILED as error:
        word = (
            f"{file} is nothing that `report` kept ({error!r}). It was left in place; "
            f"move it away to read the dumps again"
        )
        return Responses({}, [], [word]), []
