"""A folder of runs, read from its files alone, half-way or finished."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_verl_ext.ablation.grid import runs_of, variant_name
from grpo_verl_ext.ablation.settings import AblationError, GridSettings
from grpo_verl_ext.ablation.state import State, state_of
from grpo_verl_ext.files import write_whole
from grpo_verl_ext.runs.metrics import Metrics

GRID = "grid.json"


@dataclass(frozen=True)
class Result:
    """One run as far as it is."""

    variant: str
    seed: int
    state: State
    metrics: Metrics


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
        settings = replace(GridSettings(**json.loads(file.read_text(encoding="utf-8"))), folder=str(folder))
        runs = runs_of(settings)
    except (ValueError, TypeError, AttributeError) as error:
        raise AblationError(f"{file} is no grid ({error!r}). It was left in place") from error
    return Results(
        settings, [Result(run.variant, run.seed, state_of(run), run.training.metrics()) for run in runs]
    )
