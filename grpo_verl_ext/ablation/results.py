"""A folder of runs, read from its files alone, half-way or finished."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from grpo_verl_ext.ablation.grid import AblationError, GridRun, GridSettings, runs_of, variant_name
from grpo_verl_ext.ablation.responses import CHARACTERS, Measures, read_responses
from grpo_verl_ext.ablation.run_state import State, read_record, standing_of
from grpo_verl_ext.runs.dumps import Response
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, made

GRID = "grid.json"


@dataclass(frozen=True)
class Result:
    """One run as far as it is."""

    variant: str
    seed: int
    state: State
    metrics: Metrics
    """verl's, and those of `responses`."""
    made_with: str | None = None
    """Commit and versions, as its record has them."""
    samples: list[Response] = field(default_factory=list)
    """Of its last validation."""
    troubles: list[str] = field(default_factory=list)
    """What of its files cannot be read."""


@dataclass(frozen=True)
class Results:
    """All runs of a grid."""

    settings: GridSettings
    runs: list[Result]

    @property
    def baseline(self) -> str:
        """The variant that the others are compared with."""
        return variant_name(self.settings.baseline)

    @property
    def variants(self) -> list[str]:
        """Their names, the baseline first."""
        names = dict.fromkeys(run.variant for run in self.runs)
        return [self.baseline, *(name for name in names if name != self.baseline)]

    @property
    def made_with(self) -> list[str]:
        """Of the finished runs, each once."""
        return list(dict.fromkeys(run.made_with for run in self.runs if run.made_with))

    def finished(self, variant: str) -> list[Result]:
        """Only whole runs are compared."""
        return [run for run in self.runs if run.variant == variant and run.state is State.FINISHED]


def keep_grid(settings: GridSettings) -> None:
    """Leave the grid with its runs, for `read_results`."""
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / GRID, json.dumps(settings.as_dict(), indent=2) + "\n")


def read_results(folder: Path) -> Results:
    """What lies in the folder; it may have been moved.

    Raises:
        AblationError: there is no grid, or it cannot be read; it is left in place.
    """
    file = folder / GRID
    if not file.is_file():
        raise AblationError(
            f"{folder} has no {GRID}; valid is the folder of a grid that `ablate --run` has begun"
        )
    try:
        content = json.loads(file.read_bytes())
        settings = made(GridSettings, {**content, "folder": str(folder)})
        runs = runs_of(settings)
    except PARSE_ERRORS as error:
        raise AblationError(f"{file} is no grid ({error!r}). It was left in place") from error
    measures = Measures()
    return Results(settings, [_result(run, settings, measures) for run in runs])


def _result(run: GridRun, settings: GridSettings, measures: Measures) -> Result:
    standing = standing_of(run)
    if standing.state is not State.FINISHED:
        unread = [standing.trouble] if standing.state is State.UNREADABLE and standing.trouble else []
        return Result(run.variant, run.seed, standing.state, standing.metrics, troubles=unread)
    measure = partial(measures.of, run.training.folder)
    responses = read_responses(run.training, measure, right_above=settings.right_above)
    metrics = {
        step: {**values, **responses.metrics.get(step, {})} for step, values in standing.metrics.items()
    }
    in_characters = any(
        f"/{CHARACTERS}/" in name for of_step in responses.metrics.values() for name in of_step
    )
    caution = measure().caution if in_characters else None
    troubles = responses.troubles + ([caution] if caution else [])
    made_with = _made_with(run, troubles)
    return Result(run.variant, run.seed, standing.state, metrics, made_with, responses.samples, troubles)


def _made_with(run: GridRun, troubles: list[str]) -> str | None:
    try:
        record = read_record(run)
    except AblationError as error:
        troubles.append(str(error))
        return None
    if record is None:
        return None
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return f"commit {record['git_revision'] or 'unknown'}; {versions}"
