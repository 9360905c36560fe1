"""What a finished run's responses say, from verl's dumps: length by correctness, prompts that teach nothing.

Dumps are large and often removed. What was read from them is kept in the run's folder, and stands for them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from grpo_verl_ext.runs.dumps import CorruptDumpError, Response, dump_file, read_dump
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, made, typed

KEPT = "responses.json"
KEPT_FIELDS = {"measure": list, "metrics": dict[str, dict[str, float]], "samples": list}
SAMPLES = 16
"""Responses of the last validation that are kept, to be shown."""
NO_DIFFERENCE = "responses/groups_without_difference"
SHARE_RIGHT = "responses/right"


TOKENS, CHARACTERS = "tokens", "characters"
"""Units of length."""


@dataclass(frozen=True)
class Measure:
    """How long a response is."""

    unit: str
    length: Callable[[str], int]
    caution: str | None = None
    """Why it is not in tokens."""


@dataclass(frozen=True)
class Responses:
    """What one run's dumps come to."""

    metrics: Metrics
    """By training step, as `step_metrics` names them."""
    samples: list[Response]
    """Of the last validation; the same prompts for every run that was validated on them."""
    troubles: list[str]
    """A word for each file that cannot be read; it was left in place."""


def read_responses(run: VerlRun, measure: Callable[[], Measure], *, right_above: float | None) -> Responses:
    """From a finished run's dumps, once; then from what was kept of them, which outlives the dumps.

    Args:
        measure: loads a tokenizer, and is not called where lengths in tokens were kept.
        right_above: a response is right if its score is above; None: nobody has said what is right.
    """
    file = run.folder / KEPT
    if file.exists():
        kept, made_with = _read_kept(file)
        if kept.troubles or not run.rollouts.is_dir() or made_with == [TOKENS, right_above]:
            return kept
        if made_with == [measure().unit, right_above]:
            return kept
    read = _read_dumps(run, measure(), right_above)
    if not read.troubles and (read.metrics or read.samples):
        _keep(read, [measure().unit, right_above], file)
    return read


def step_metrics(rows: Iterable[Response], measure: Measure, right_above: float | None) -> dict[str, float]:
    """One training step: lengths of right and wrong responses, shares of right ones and of idle prompts.

    A length is missing where there is no such response, and both where nobody has said what is right.
    """
    rows = list(rows)
    scores = defaultdict(set)
    for row in rows:
        scores[row.prompt_id].add(row.score)
    values = {NO_DIFFERENCE: mean(len(different) == 1 for different in scores.values())}
    if right_above is None:
        return values
    lengths: dict[str, list[int]] = {"right": [], "wrong": []}
    for row in rows:
        lengths["right" if row.score > right_above else "wrong"].append(measure.length(row.output))
    values[SHARE_RIGHT] = len(lengths["right"]) / len(rows)
    return values | {
        f"responses/{measure.unit}/{kind}": mean(found) for kind, found in lengths.items() if found
    }


def chosen(rows: Iterable[Response]) -> list[Response]:
    """A few of them, by a hash of the prompt: no matter what was answered, or in which order."""
    return sorted(rows, key=lambda row: hashlib.sha256(row.prompt.encode()).digest())[:SAMPLES]


def _read_dumps(run: VerlRun, measure: Measure, right_above: float | None) -> Responses:
    troubles: list[str] = []

    def rows_of(folder: Path, step: int) -> list[Response]:
        file = dump_file(folder, step)
        try:
            return read_dump(file) if file.exists() else []
        except CorruptDumpError as error:
            troubles.append(str(error))
            return []

    metrics = {
        step: step_metrics(rows, measure, right_above)
        for step in range(1, run.steps + 1)
        if (rows := rows_of(run.rollouts, step))
    }
    return Responses(metrics, chosen(rows_of(run.validation, run.steps)), troubles)


def _keep(read: Responses, made_with: list[object], file: Path) -> None:
    content = {
        "measure": made_with,
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
    except PARSE_ERRORS as error:
        word = (
            f"{file} is nothing that `report` kept ({error!r}). It was left in place; "
            f"move it away to read the dumps again"
        )
        return Responses({}, [], [word]), []


RESOLVED = Path("hydra") / ".hydra" / "config.yaml"


class Measures:
    """Of the runs of one report; a model's tokenizer is loaded when a run first asks for it, and once."""

    def __init__(self) -> None:
        self._of_model = functools.cache(_of_model)

    def of(self, run_folder: Path) -> Measure:
        """Tokens by the run's own tokenizer, without the end token; characters where it is not here.

        Nothing is fetched: a model of the hub must be in its cache.
        """
        try:
            model = OmegaConf.load(run_folder / RESOLVED).actor_rollout_ref.model.path
        except (OSError, ValueError, AttributeError, YAMLError, OmegaConfBaseException) as error:
            return _in_characters(run_folder, error)
        return self._of_model(model)


def _of_model(model: str) -> Measure:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        return _in_characters(model, error)
    return Measure(TOKENS, lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"]))


def _in_characters(whose: str | Path, error: Exception) -> Measure:
    caution = f"lengths are in characters, for there is no tokenizer of {whose}: {error}"
    return Measure(CHARACTERS, len, caution.splitlines()[0])
