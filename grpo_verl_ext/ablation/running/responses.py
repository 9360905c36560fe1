"""Numbers about a finished run's responses: length by correctness, share of prompts without a difference.

They are read from verl's dumps, which are large and often removed, and kept in the run's folder.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import comb, sqrt
from pathlib import Path
from statistics import mean, variance
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from grpo_verl_ext.runs.dumps import CorruptDumpError, Response, dump_file, read_dump
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.documents import DocumentError, read_json
from grpo_verl_ext.utils.files import write_whole

KEPT = "responses.json"
SAMPLES = 16
"""How many responses of the last validation are kept, to be shown in the report."""
NO_DIFFERENCE = "responses/groups_without_difference"
SHARE_RIGHT = "responses/right"
_SPREAD = "spread"


TOKENS, CHARACTERS = "tokens", "characters"
"""Units of length."""


@dataclass(frozen=True)
class Measure:
    """A way to measure the length of a response."""

    unit: str
    length: Callable[[str], int]
    warning: str | None = None
    """Why the unit is not tokens."""


@dataclass(frozen=True)
class Responses:
    """Numbers and samples from one run's dumps."""

    metrics: Metrics
    """`response_metrics` by training step."""
    samples: list[Response]
    """Of the last validation; the same prompts for every run that was validated on them."""
    warnings: list[str]
    """One for each file that cannot be read; it was left in place."""


def read_responses(run: VerlRun, measure: Callable[[], Measure], *, right_above: float | None) -> Responses:
    """Read a finished run's dumps once, and keep the result, which outlives the dumps.

    Args:
        measure: loads a tokenizer; not called where lengths in tokens were kept.
        right_above: a response with a higher score is right; None: right and wrong are not told apart.
    """
    file = run.folder / KEPT
    if file.exists():
        kept, made_with = _read_kept(file)
        if kept.warnings or made_with == [TOKENS, right_above]:
            return kept
        if not run.rollouts.is_dir():
            return kept if made_with[1:] == [right_above] else _without_right(kept, file, made_with[1:])
        if made_with == [measure().unit, right_above]:
            return kept
    read = _read_dumps(run, measure(), right_above)
    if not read.warnings and (read.metrics or read.samples):
        try:
            kept_now = _Kept([measure().unit, right_above], read.metrics, read.samples)
            write_whole(file, json.dumps(asdict(kept_now), ensure_ascii=False) + "\n")
        except OSError as error:
            read.warnings.append(
                f"{file} cannot be written ({error.strerror}): keep the dumps, from which these numbers are "
                f"read again for each report"
            )
    return read


def _without_right(kept: Responses, file: Path, threshold: list[object]) -> Responses:
    """Leave out what depends on a threshold that has changed since the dumps were read, and are gone."""
    metrics = {
        step: {
            name: value
            for name, value in values.items()
            if name == NO_DIFFERENCE or name.endswith(f"/{_SPREAD}")
        }
        for step, values in kept.metrics.items()
    }
    warning = (
        f"{file} was made with right_above={json.dumps(threshold[0] if threshold else None)}, and the dumps "
        f"are gone: the shares and lengths of right and wrong are left out. Type the old right_above"
    )
    return Responses(metrics, kept.samples, [warning])


def response_metrics(
    rows: Iterable[Response], measure: Measure, right_above: float | None
) -> dict[str, float]:
    """Numbers of one training step's responses.

    ``responses/groups_without_difference``: share of prompts whose responses all score the same.
    ``responses/<unit>/spread``: standard deviation (n − 1) of the length of responses to one prompt, the root
    of the mean variance. With ``right_above`` also ``responses/right``, the share of right responses;
    ``responses/<unit>/right`` and ``/wrong``, the mean length of each kind; and ``responses/pass@<k>``, the
    mean over prompts of `pass_at_k`, for k = 1, 2, 4, … up to the fewest responses of a prompt. A
    mean of no response is missing.
    """
    rows = list(rows)
    scores, lengths_of = defaultdict(list), defaultdict(list)
    lengths: dict[str, list[int]] = {"right": [], "wrong": []}
    for row in rows:
        length = measure.length(row.output)
        scores[row.prompt_id].append(row.score)
        lengths_of[row.prompt_id].append(length)
        if right_above is not None:
            lengths["right" if row.score > right_above else "wrong"].append(length)
    values = {NO_DIFFERENCE: mean(len(set(own)) == 1 for own in scores.values())}
    if variances := [variance(own) for own in lengths_of.values() if len(own) > 1]:
        values[f"responses/{measure.unit}/{_SPREAD}"] = sqrt(mean(variances))
    if right_above is None:
        return values
    values[SHARE_RIGHT] = len(lengths["right"]) / len(rows)
    values |= {f"responses/{measure.unit}/{kind}": mean(found) for kind, found in lengths.items() if found}
    return values | _passes([[score > right_above for score in own] for own in scores.values()])


def _passes(prompts: list[list[bool]]) -> dict[str, float]:
    """pass@k over prompts, from which of each prompt's responses are right."""
    fewest = min(map(len, prompts))
    return {
        f"responses/pass@{k}": mean(pass_at_k(sum(own), len(own), k) for own in prompts)
        for k in (2**power for power in range(fewest.bit_length()))
    }


def pass_at_k(right: int, total: int, k: int) -> float:
    """Probability that at least one of ``k`` of a prompt's responses, drawn without replacement, is right.

    1 − C(n − c, k)/C(n, k) with c right of n responses: unbiased for k independent responses (arXiv
    2107.03374, eq. 1).

    Differs from verl's ``best@k``, which draws with replacement and is too low.

    Raises:
        ValueError: not 0 ≤ right ≤ total and 1 ≤ k ≤ total.
    """
    if not (0 <= right <= total and 1 <= k <= total):
        raise ValueError(
            f"pass@{k} of {right} right of {total} responses; valid are 0 ≤ right ≤ total, 1 ≤ k ≤ total"
        )
    return 1 - comb(total - right, k) / comb(total, k)


def chosen(rows: Iterable[Response]) -> list[Response]:
    """The first `SAMPLES` by a hash of the prompt, so that all runs show the same prompts."""
    return sorted(rows, key=lambda row: hashlib.sha256(row.prompt.encode()).digest())[:SAMPLES]


def _read_dumps(run: VerlRun, measure: Measure, right_above: float | None) -> Responses:
    warnings: list[str] = []

    def rows_of(folder: Path, step: int) -> list[Response]:
        file = dump_file(folder, step)
        try:
            return read_dump(file) if file.exists() else []
        except CorruptDumpError as error:
            warnings.append(str(error))
            return []

    rollouts, validation = run.rollouts, run.validation
    metrics = {
        step: response_metrics(rows, measure, right_above)
        for step in range(1, run.steps + 1)
        if (rows := rows_of(rollouts, step))
    }
    return Responses(metrics, chosen(rows_of(validation, run.steps)), warnings)


@dataclass(frozen=True)
class _Kept:
    measure: list[Any]
    """Unit of length and ``right_above``."""
    metrics: Metrics
    samples: list[Response]


def _read_kept(file: Path) -> tuple[Responses, list[object]]:
    try:
        kept = read_json(file, _Kept)
    except (DocumentError, OSError) as error:
        warning = (
            f"{file} is not what `ablate report` kept ({error}). It was left in place; "
            f"move it away to read the dumps again"
        )
        return Responses({}, [], [warning]), []
    return Responses(kept.metrics, kept.samples, []), kept.measure


_RESOLVED = Path("hydra") / ".hydra" / "config.yaml"


def measure_of(run_folder: Path, of_model: Callable[[str], Measure]) -> Measure:
    """What the run's model measures in, as `measure_of_model`; ``of_model`` may load each one only once."""
    try:
        model = OmegaConf.load(run_folder / _RESOLVED).actor_rollout_ref.model.path
    except (OSError, ValueError, AttributeError, YAMLError, OmegaConfBaseException) as error:
        return _in_characters(run_folder, error)
    return of_model(model)


def measure_of_model(model: str) -> Measure:
    """Tokens by the model's tokenizer, without the end token; characters if it is not on this machine.

    Nothing is downloaded: a model of the hub must be in the local cache.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        return _in_characters(model, error)
    return Measure(TOKENS, lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"]))


def _in_characters(whose: str | Path, error: Exception) -> Measure:
    warning = f"lengths are in characters, for there is no tokenizer of {whose}: {error}"
    return Measure(CHARACTERS, len, warning.splitlines()[0])
