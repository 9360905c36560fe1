"""The grid file of ``grpo-verl-ext ablate``, and the runs that it describes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from grpo_verl_ext.ablation.declaration import Declaration, contradictions
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.documents import as_plain, from_plain, read_yaml

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A label becomes part of a folder's name, which every file system and tool must take."""


class AblationError(ValueError):
    """The grid, or its folder, cannot be used; the message says what to type."""


@dataclass(kw_only=True)
class GridSettings(Declaration):
    """The keys of a grid file."""

    folder: str
    """Folder of the results, with a folder per run."""
    steps: Annotated[int, Field(ge=1)]
    """Training steps of every run."""
    base: list[str]
    """verl overrides that all runs share."""
    seed_overrides: list[str] = field(
        default_factory=lambda: ["data.seed={seed}", "++actor_rollout_ref.rollout.seed={seed}"]
    )
    """Overrides that depend on the seed, the same for all variants, so that runs are paired by seed."""
    metrics: list[str]
    """Names of verl's metrics to compare, the most important first."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values without the folder, which may be moved."""
        return {key: value for key, value in as_plain(self).items() if key != "folder"}


@dataclass
class GridRun:
    """One training of the grid: a variant with a seed."""

    variant: str
    seed: int
    training: VerlRun

    @property
    def name(self) -> str:
        """``<variant>/seed-<seed>``, the run's folder within the grid's."""
        return f"{self.variant}/seed-{self.seed}"


def read_grid(file: Path, overrides: Sequence[str] = ()) -> GridSettings:
    """Read a grid file, apply ``key=value`` overrides, and check everything that needs no verl."""
    settings = read_yaml(file, GridSettings, AblationError, overrides)
    for fault in chain(_faults(settings), _wrong_names(settings), contradictions(settings)):
        raise AblationError(fault)
    return settings


def read_kept(content: dict[str, Any], folder: Path) -> tuple[GridSettings, list[GridRun]]:
    """Make a grid from what `GridSettings.as_dict` gave, and list its runs."""
    settings = from_plain({**content, "folder": str(folder)}, GridSettings)
    runs = runs_of(settings)
    for contradiction in contradictions(settings):
        raise AblationError(contradiction)
    return settings, runs


def runs_of(settings: GridSettings) -> list[GridRun]:
    """All runs, seed by seed, so that a grid that is stopped early has complete comparisons."""
    found, grid = [], Path(settings.folder)
    for seed in settings.seeds:
        of_seed = [override.replace("{seed}", str(seed)) for override in settings.seed_overrides]
        for variant, of_variant in settings.overrides.items():
            overrides, name = [*settings.base, *of_variant, *of_seed], f"{variant}/seed-{seed}"
            tracked_as = (grid.resolve().name, name)
            training = VerlRun(grid / name, overrides, settings.steps, tracked_as)
            found.append(GridRun(variant, seed, training))
    return found


def _faults(settings: GridSettings) -> Iterator[str]:
    seeds = settings.seeds
    for key in ("axes", "seeds", "metrics"):
        if not getattr(settings, key):
            yield f"{key} is empty; valid is at least one. Type: {key}=…"
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        yield f"seeds is {seeds}; valid are different integers ≥ 0. Type: 'seeds=[1,2,3]'"
    if len(seeds) > 1 and not any("{seed}" in override for override in settings.seed_overrides):
        yield (
            f"seed_overrides is {settings.seed_overrides}, which does not depend on the seed, so that the "
            f"runs of all {len(seeds)} seeds would be one run; valid is an override with {{seed}}. "
            f"Type: 'seed_overrides=[data.seed={{seed}}]', or 'seeds=[{seeds[0]}]'"
        )


def _wrong_names(settings: GridSettings) -> Iterator[str]:
    """Name labels that no folder takes, and variants with one folder, as some file systems ignore case."""
    for axis, choices in settings.axes.items():
        if not choices:
            yield f"axes.{axis} has no choice; valid is label: [overrides]. Remove the axis"
        for label in choices:
            if not _LABEL.fullmatch(label):
                yield (
                    f"axes.{axis} has the label {label!r}, which names folders; valid are letters, digits "
                    f"and . _ - after a letter or a digit. Rename it"
                )
    if tuple(settings.baseline) not in product(*settings.axes.values()):
        yield (
            f"baseline is {settings.baseline}; valid is one label of each axis, in their order: "
            + ", ".join(f"{axis}: {' | '.join(choices)}" for axis, choices in settings.axes.items())
            + f". Type: 'baseline=[{','.join(next(iter(choices)) for choices in settings.axes.values())}]'"
        )
    taken: dict[str, tuple[str, ...]] = {}
    for labels in product(*settings.axes.values()):
        variant = "-".join(labels)
        other = taken.setdefault(variant.casefold(), labels)
        if other != labels:
            yield (
                f"the labels {', '.join(other)} and {', '.join(labels)} name one folder, {variant}; valid "
                f"are labels that differ when joined by -. Rename one of them"
            )
