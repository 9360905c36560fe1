"""The grid file of ``grpo-verl-ext ablate``, and the runs that it describes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.declaration import Declaration, contradictions
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.documents import as_plain, from_plain, read_yaml

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A label becomes part of a folder's name, which every file system and tool must take."""
_LONGEST = 255
"""Largest number of bytes, here also of characters, in a folder's name."""


class AblationError(ValueError):
    """The grid, or its folder, cannot be used; the message says what to type."""


@dataclass(kw_only=True)
class GridSettings(Declaration):
    """The keys of a grid file."""

    folder: str
    """Folder of the results, with a folder per run."""
    steps: int
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
    """Read a grid file, apply ``key=value`` overrides, and check everything that needs no verl.

    Raises:
        AblationError: no such file, invalid YAML, an unknown key, a missing or a wrong value.
    """
    settings = read_yaml(file, GridSettings, AblationError, overrides)
    for fault in chain(_faults(settings), _wrong_names(settings), contradictions(settings)):
        raise AblationError(fault)
    return settings


def read_kept(content: dict[str, Any], folder: Path) -> tuple[GridSettings, list[GridRun]]:
    """Make a grid from what `GridSettings.as_dict` gave, and list its runs.

    Raises:
        ValueError: the content is something else.
    """
    settings = from_plain({**content, "folder": str(folder)}, GridSettings)
    runs = runs_of(settings)
    for contradiction in contradictions(settings):
        raise AblationError(contradiction)
    return settings, runs


def runs_of(settings: GridSettings) -> list[GridRun]:
    """All runs, seed by seed, so that a grid that is stopped early has complete comparisons."""
    return [
        _run(settings, choices, seed)
        for seed in settings.seeds
        for choices in product(*(axis.items() for axis in settings.axes.values()))
    ]


def _run(settings: GridSettings, choices: tuple[tuple[str, list[str]], ...], seed: int) -> GridRun:
    of_variant = [override for _, overrides in choices for override in overrides]
    of_seed = [override.replace("{seed}", str(seed)) for override in settings.seed_overrides]
    overrides, grid = [*settings.base, *of_variant, *of_seed], Path(settings.folder)
    variant = "-".join(label for label, _ in choices)
    name = f"{variant}/seed-{seed}"
    return GridRun(
        variant, seed, VerlRun(grid / name, overrides, settings.steps, (grid.resolve().name, name))
    )


def _faults(settings: GridSettings) -> Iterator[str]:
    """Name values that no grid can have."""
    seeds = settings.seeds
    if settings.steps < 1:
        yield f"steps is {settings.steps}; valid is an integer ≥ 1. Type: steps=1"
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
        for number, label in enumerate(choices, start=1):
            if not _LABEL.fullmatch(label):
                valid = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("._-") or f"{axis}-{number}"
                yield (
                    f"axes.{axis} has the label {label!r}, which names folders; valid are letters, digits "
                    f"and . _ - after a letter or a digit. Type: {valid}"
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
        if len(variant) > _LONGEST:
            yield (
                f"the labels {', '.join(labels)} name a folder with {len(variant)} characters; "
                f"valid are {_LONGEST} when joined by -. Shorten them"
            )
        other = taken.setdefault(variant.casefold(), labels)
        if other != labels:
            yield (
                f"the labels {', '.join(other)} and {', '.join(labels)} name one folder, {variant}; valid "
                f"are labels that differ when joined by -. Rename one of them"
            )
