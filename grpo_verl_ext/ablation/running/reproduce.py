"""Train one kept run again from its record, and find where the two trainings differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from grpo_verl_ext.ablation.declaration.grid import AblationError, GridSettings
from grpo_verl_ext.ablation.running.results import Results
from grpo_verl_ext.ablation.running.state import Record, State
from grpo_verl_ext.runs.provenance import CHANGED

_OF_THE_MACHINE = ("timing", "perf/")
"""Beginnings of the names of metrics that measure the machine, and not the training."""


@dataclass(frozen=True)
class KeptRun:
    """A finished run that can be trained again."""

    variant: str
    seed: int
    record: Record
    logged: pd.DataFrame
    """Its rows of `Results.table`."""


def kept_run(results: Results, name: str) -> KeptRun:
    """Find the run ``<variant>/seed-<seed>`` and check that its record says what it was made with.

    Raises:
        AblationError: there is no such run, it is not finished, or its record lacks something.
    """
    named = {run.name: run for run in results.runs}
    if name not in named:
        raise AblationError(f"--run is {name}; valid are {', '.join(named)}. Type: --run {next(iter(named))}")
    run = named[name]
    if run.state is not State.FINISHED:
        finished = [each.name for each in results.runs if each.state is State.FINISHED]
        raise AblationError(
            f"--run is {name}, which is {run.state.value}; valid is a finished run: "
            f"{', '.join(finished) or 'there is none'}"
        )
    if run.record is None:
        raise AblationError(f"{name} cannot be trained again: it has no record of its overrides (run.json)")
    missing = list(_missing(run.record))
    if missing:
        raise AblationError(f"{name} cannot be trained again: {'; '.join(missing)}")
    return KeptRun(run.variant, run.seed, run.record, _rows(results, run.variant, run.seed))


def _missing(record: Record) -> Iterator[str]:
    if (record.git_revision or "").endswith(CHANGED):
        yield f"its sources differed from their commit ({record.git_revision}), so what ran cannot be known"
    if not record.inputs:
        yield "its record has no hash of its model and data (inputs), as earlier versions wrote it"


def _rows(results: Results, variant: str, seed: int) -> pd.DataFrame:
    table = results.table
    return table[(table["variant"] == variant) & (table["seed"] == seed)]


def grid_of_one(settings: GridSettings, kept: KeptRun, folder: Path) -> GridSettings:
    """Return the exploratory grid whose only run has the overrides and steps of the record."""
    return replace(
        settings,
        folder=str(folder),
        steps=kept.record.steps,
        base=kept.record.overrides,
        axes={"run": {kept.variant: []}},
        baseline=[kept.variant],
        seeds=[kept.seed],
        seed_overrides=[],
        primary=None,
        margin=None,
        starts=None,
        expect=[],
        checks=[],
        control=None,
    )


def changed(
    record: Record,
    *,
    inputs: Mapping[str, str],
    versions: Mapping[str, str],
    revision: str | None,
    machine: str,
) -> list[tuple[str, str, str]]:
    """Compare what the run was made with and what it is made with now.

    Returns:
        What differs, its value then, and its value now.
    """
    then = {**record.inputs, **record.versions, "commit": record.git_revision, "machine": record.machine}
    now = {**inputs, **versions, "commit": revision, "machine": machine}
    return [
        (name, then.get(name) or "unknown", now.get(name) or "none")
        for name in dict.fromkeys([*then, *now])
        if then.get(name) != now.get(name)
    ]


@dataclass(frozen=True)
class Difference:
    """How far the values of one metric are apart."""

    metric: str
    steps: int
    """Steps that both trainings have logged."""
    first: int | None
    """The first step at which the values are not the same to the bit; None: there is none."""
    largest: float
    """Largest absolute difference; inf where one of the two is not finite."""


def differences(kept: KeptRun, again: Results) -> list[Difference]:
    """Compare every metric that does not measure the machine; NaN equals NaN.

    Raises:
        AblationError: one training has logged a metric at a step where the other has not.
    """
    then = _by_step(kept.logged)
    now = _by_step(_rows(again, kept.variant, kept.seed))
    alone = then.index.symmetric_difference(now.index)
    if len(alone):
        metric, step = alone[0]
        raise AblationError(
            f"only one of the two trainings has logged {metric} at step {step}, and {len(alone) - 1} more; "
            f"valid is the commit and the verl of the record"
        )
    apart = (then - now.reindex(then.index)).abs()
    same = (then == now.reindex(then.index)) | (then.isna() & now.reindex(then.index).isna())
    apart = apart.where(~same, 0.0).fillna(float("inf"))
    return [_difference(str(metric), of_metric) for metric, of_metric in apart.groupby(level="metric")]


def _by_step(rows: pd.DataFrame) -> pd.Series[float]:
    of_training = rows[~rows["metric"].astype(str).str.startswith(_OF_THE_MACHINE)]
    return of_training.astype({"metric": str}).set_index(["metric", "step"])["value"].sort_index()


def _difference(metric: str, apart: pd.Series[float]) -> Difference:
    steps = apart[apart > 0].index.get_level_values("step")
    return Difference(metric, len(apart), min(steps, default=None), float(apart.max()))
