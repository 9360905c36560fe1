"""Everything a report reads of a grid's folder, whether its runs are finished or not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.declaration.grid import (
    AblationError,
    GridRun,
    GridSettings,
    check_declaration,
    runs_of,
    variant_name,
)
from grpo_verl_ext.ablation.running.responses import CHARACTERS, Measures, read_responses
from grpo_verl_ext.ablation.running.state import State, read_record, status_of
from grpo_verl_ext.ablation.statistics.measures import MEASURES, Curve, curve
from grpo_verl_ext.ablation.statistics.verdicts import CheckResult
from grpo_verl_ext.runs.dumps import Response
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, made

GRID = "grid.json"


@dataclass(frozen=True)
class Result:
    """One run: its state, and what it logged so far."""

    variant: str
    seed: int
    state: State
    metrics: Metrics
    """verl's metrics and those of `responses`."""
    record: dict[str, Any] | None = None
    """Overrides, steps, commit and versions of a finished run."""
    samples: list[Response] = field(default_factory=list)
    """Responses of the last validation."""
    warnings: list[str] = field(default_factory=list)
    """Files that cannot be read, with paths relative to the grid's folder."""

    @property
    def made_with(self) -> str | None:
        """Commit and versions as one line."""
        if self.record is None:
            return None
        versions = ", ".join(f"{name} {version}" for name, version in self.record["versions"].items())
        return f"commit {self.record['git_revision'] or 'unknown'}; {versions}"


@dataclass(frozen=True)
class Results:
    """All runs of a grid."""

    settings: GridSettings
    runs: list[Result]
    control: CheckResult | None = None
    """The control of another grid that ``control.grid`` names, once it is read; a compact file keeps it."""

    @property
    def baseline(self) -> str:
        """The variant that the others are compared with."""
        return variant_name(self.settings.baseline)

    @property
    def variants(self) -> list[str]:
        """Names of the variants, the baseline first."""
        names = dict.fromkeys(run.variant for run in self.runs)
        return [self.baseline, *(name for name in names if name != self.baseline)]

    @property
    def made_with(self) -> list[str]:
        """Commits and versions of the finished runs, each once."""
        return list(dict.fromkeys(run.made_with for run in self.runs if run.made_with))

    def finished(self, variant: str) -> list[Result]:
        """The finished runs of a variant; only these are compared."""
        return [run for run in self.runs if run.variant == variant and run.state is State.FINISHED]

    def values(self, variant: str, metric: str, measure: str) -> dict[int, float]:
        """Seed → measure of the finished runs whose curve is whole."""
        return {
            run.seed: MEASURES[measure](points)
            for run in self.finished(variant)
            if self.is_whole(points := curve(run.metrics, metric))
        }

    def is_whole(self, points: Curve) -> bool:
        """Whether a curve reaches the last step, so that its last value is that of the trained policy."""
        return bool(points) and points[-1][0] >= self.settings.steps


def keep_grid(settings: GridSettings) -> None:
    """Write the grid into its folder, for `read_results`, with the seeds of the runs that have begun there.

    Raises:
        AblationError: as `check_unchanged`.
    """
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    earlier = check_unchanged(settings)
    seeds = [*(earlier.seeds if earlier else []), *settings.seeds]
    kept = replace(settings, seeds=list(dict.fromkeys(seeds)))
    write_whole(folder / GRID, json.dumps(kept.as_dict(), indent=2) + "\n")


FIXED = ("primary", "margin", "alpha", "starts", "expect", "checks", "control", "baseline", "right_above")
"""Keys that cannot change once a run of a grid with a declaration has begun."""


def check_unchanged(settings: GridSettings) -> GridSettings | None:
    """Refuse another declaration than that of the runs that have begun in the grid's folder.

    Returns:
        The grid of those runs; None where no run has begun.

    Raises:
        AblationError: names the key, both values and what to type.
    """
    folder = Path(settings.folder)
    earlier = _read_grid(folder) if (folder / GRID).is_file() else None
    if earlier is None or not any(run.training.folder.is_dir() for run in runs_of(earlier)):
        return None
    if not earlier.is_declared and settings.is_declared:
        raise AblationError(
            f"{folder} holds runs that were begun without a declaration: they stay exploratory, since "
            f"nothing can be declared once a run exists. Type folder=<another>"
        )
    if earlier.is_declared:
        before, now = _fixed(earlier, earlier), _fixed(settings, earlier)
        for key in before:
            if before[key] != now[key]:
                raise AblationError(
                    f"{folder} holds runs that were begun with {key}: {json.dumps(before[key])}, and now it "
                    f"is {json.dumps(now[key])}; what is declared cannot change once a run exists. "
                    f"Write it as it was, or type folder=<another>"
                )
    return earlier


def _fixed(settings: GridSettings, earlier: GridSettings) -> dict[str, Any]:
    """The values that cannot change; of the seeds, those that the declared starts may use."""
    values = settings.as_dict()
    seeds = {"seeds": settings.seeds[: earlier.starts.most]} if earlier.starts else {}
    return {key: values[key] for key in FIXED} | seeds


def read_results(folder: Path) -> Results:
    """Read a grid's folder, which may have been moved.

    Raises:
        AblationError: the grid is missing or cannot be read; it is left in place.
    """
    file = folder / GRID
    if not file.is_file():
        raise AblationError(f"{folder} has no {GRID}; valid is a folder that `ablate run` has begun")
    settings = _read_grid(folder)
    measures = Measures()
    return Results(settings, [_result(run, settings, measures) for run in runs_of(settings)])


def _read_grid(folder: Path) -> GridSettings:
    file = folder / GRID
    try:
        content = json.loads(file.read_bytes())
        settings = made(GridSettings, {**content, "folder": str(folder)})
        runs_of(settings)
        check_declaration(settings)
    except (*PARSE_ERRORS, OSError) as error:
        raise AblationError(f"{file} is not a grid ({error!r}). It was left in place") from error
    return settings


def _result(run: GridRun, settings: GridSettings, measures: Measures) -> Result:
    def relative(warnings: list[str]) -> list[str]:
        """The folder may be moved, and reports are shown to others."""
        return [warning.replace(f"{settings.folder}/", "") for warning in warnings]

    status = status_of(run)
    if status.state is not State.FINISHED:
        unread = [status.reason] if status.state is State.UNREADABLE and status.reason else []
        return Result(run.variant, run.seed, status.state, status.metrics, warnings=relative(unread))
    measure = partial(measures.of, run.training.folder)
    responses = read_responses(run.training, measure, right_above=settings.right_above)
    metrics = {step: {**values, **responses.metrics.get(step, {})} for step, values in status.metrics.items()}
    in_characters = any(
        f"/{CHARACTERS}/" in name for of_step in responses.metrics.values() for name in of_step
    )
    warning = measure().warning if in_characters else None
    warnings = responses.warnings + ([warning] if warning else [])
    try:
        record = read_record(run)
    except AblationError as error:
        record = None
        warnings = [*warnings, str(error)]
    return Result(run.variant, run.seed, status.state, metrics, record, responses.samples, relative(warnings))
