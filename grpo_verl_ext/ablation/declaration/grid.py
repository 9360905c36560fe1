"""The grid file of ``grpo-verl-ext ablate``, and the runs that it describes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.declaration.comparisons import (
    Control,
    Declaration,
    Expectation,
    ManipulationCheck,
    Primary,
    Starts,
)
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.documents import Document, as_plain, read_yaml

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A label becomes part of a folder's name, which every file system and tool must take."""
_LONGEST = 255
"""Largest number of bytes, here also of characters, in a folder's name."""


class AblationError(ValueError):
    """The grid, or its folder, cannot be used; the message says what to type."""


@dataclass(kw_only=True)
class GridSettings(Document):
    """The keys of a grid file."""

    folder: str
    """Folder of the results, with a folder per run."""
    steps: int
    """Training steps of every run."""
    base: list[str]
    """verl overrides that all runs share."""
    axes: dict[str, dict[str, list[str]]]
    """Axis → label → overrides. Axes are crossed; overrides that belong together share a label."""
    seeds: list[int]
    """Every variant is trained with every seed."""
    seed_overrides: list[str] = field(
        default_factory=lambda: ["data.seed={seed}", "++actor_rollout_ref.rollout.seed={seed}"]
    )
    """Overrides that depend on the seed, the same for all variants, so that runs are paired by seed."""
    baseline: list[str]
    """One label per axis, in order: the variant that the others are compared with."""
    metrics: list[str]
    """Names of verl's metrics to compare, the most important first."""
    right_above: float | None = None
    """A response with a higher score is right; None: the report does not tell right from wrong."""
    primary: Primary | None = None
    """The number that ``expect`` is about."""
    margin: float | None = None
    """Smallest difference that matters, in units of the primary."""
    alpha: float = 0.04
    """Two-sided level over all comparisons of ``expect``."""
    starts: Starts | None = None
    """Numbers of starts for ``ablate run --until-decided``."""
    expect: list[Expectation] = field(default_factory=list)
    """Comparisons that the grid is made for; empty: an exploratory grid."""
    checks: list[ManipulationCheck] = field(default_factory=list)
    """Manipulation checks."""
    control: Control | None = None
    """Positive control."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values without the folder, which may be moved."""
        return {key: value for key, value in as_plain(self).items() if key != "folder"}

    @property
    def is_declared(self) -> bool:
        """Whether the grid claims something; otherwise it is exploratory."""
        return bool(self.expect) or self.control is not None

    @property
    def declaration(self) -> Declaration:
        """What the grid claims."""
        return Declaration(
            primary=self.primary,
            margin=self.margin,
            alpha=self.alpha,
            starts=self.starts,
            expect=self.expect,
            checks=self.checks,
            control=self.control,
            variants=[_variant_name(labels) for labels in product(*self.axes.values())],
            baseline=_variant_name(self.baseline),
            seeds=self.seeds,
        )


def read_grid(file: Path, overrides: Sequence[str] = ()) -> GridSettings:
    """Read a grid file, apply ``key=value`` overrides, and check everything that needs no verl.

    Raises:
        AblationError: no such file, invalid YAML, an unknown key, a missing or a wrong value.
    """
    settings = read_yaml(file, GridSettings, AblationError, overrides)
    _check_values(settings)
    _check_labels(settings)
    _check_baseline(settings)
    _check_variants(settings)
    _check_seed_overrides(settings)
    check_declaration(settings)
    return settings


def check_declaration(settings: GridSettings) -> None:
    """Refuse a declaration that is incomplete or contradicts the grid.

    Raises:
        AblationError: names the key, the value, the valid ones and what to type.
    """
    for contradiction in settings.declaration.contradictions():
        raise AblationError(contradiction)


def _check_values(settings: GridSettings) -> None:
    if settings.steps < 1:
        raise AblationError(f"steps is {settings.steps}; valid is an integer ≥ 1. Type: steps=1")
    for key in ("axes", "seeds", "metrics"):
        if not getattr(settings, key):
            raise AblationError(f"{key} is empty; valid is at least one. Type: {key}=…")
    if min(settings.seeds) < 0 or len(set(settings.seeds)) < len(settings.seeds):
        raise AblationError(
            f"seeds is {settings.seeds}; valid are different integers ≥ 0. Type: 'seeds=[1,2,3]'"
        )


def _check_labels(settings: GridSettings) -> None:
    for axis, choices in settings.axes.items():
        if not choices:
            raise AblationError(f"axes.{axis} has no choice; valid is label: [overrides]. Remove the axis")
        for number, label in enumerate(choices, start=1):
            if not _LABEL.fullmatch(label):
                valid = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("._-") or f"{axis}-{number}"
                raise AblationError(
                    f"axes.{axis} has the label {label!r}, which names folders; valid are letters, digits "
                    f"and . _ - after a letter or a digit. Type: {valid}"
                )


def _check_baseline(settings: GridSettings) -> None:
    valid = [list(choices) for choices in settings.axes.values()]
    if len(settings.baseline) != len(valid) or any(
        label not in labels for label, labels in zip(settings.baseline, valid, strict=False)
    ):
        raise AblationError(
            f"baseline is {settings.baseline}; valid is one label of each axis, in their order: "
            + ", ".join(f"{axis}: {' | '.join(choices)}" for axis, choices in settings.axes.items())
            + f". Type: 'baseline=[{','.join(labels[0] for labels in valid)}]'"
        )


def _check_variants(settings: GridSettings) -> None:
    """Refuse two variants with one folder, as some file systems ignore case, and names that none takes."""
    taken: dict[str, tuple[str, ...]] = {}
    for labels in product(*settings.axes.values()):
        if len(_variant_name(labels)) > _LONGEST:
            raise AblationError(
                f"the labels {', '.join(labels)} name a folder with {len(_variant_name(labels))} characters; "
                f"valid are {_LONGEST} when joined by {_SEPARATOR}. Shorten them"
            )
        other = taken.setdefault(_variant_name(labels).casefold(), labels)
        if other != labels:
            raise AblationError(
                f"the labels {', '.join(other)} and {', '.join(labels)} name one folder, "
                f"{_variant_name(labels)}; valid are labels that differ when joined by {_SEPARATOR}. "
                f"Rename one of them"
            )


def _check_seed_overrides(settings: GridSettings) -> None:
    if len(settings.seeds) > 1 and not any("{seed}" in override for override in settings.seed_overrides):
        raise AblationError(
            f"seed_overrides is {settings.seed_overrides}, which does not depend on the seed, so that the "
            f"runs of all {len(settings.seeds)} seeds would be one run; valid is an override with {{seed}}. "
            f"Type: 'seed_overrides=[data.seed={{seed}}]', or 'seeds=[{settings.seeds[0]}]'"
        )


_SEPARATOR = "-"


@dataclass
class GridRun:
    """One training of the grid: a variant with a seed."""

    labels: tuple[str, ...]
    """One label per axis."""
    seed: int
    training: VerlRun
    variant: str = field(init=False)
    """The labels, joined."""
    name: str = field(init=False)
    """``<variant>/seed-<seed>``, the run's folder within the grid's."""

    def __post_init__(self) -> None:
        self.variant = _variant_name(self.labels)
        self.name = _run_name(self.labels, self.seed)


def _run_name(labels: tuple[str, ...], seed: int) -> str:
    return f"{_variant_name(labels)}/seed-{seed}"


def _variant_name(labels: tuple[str, ...] | list[str]) -> str:
    return _SEPARATOR.join(labels)


def runs_of(settings: GridSettings) -> list[GridRun]:
    """All runs, seed by seed, so that a grid that is stopped early has complete comparisons."""
    variants = list(product(*(choices.items() for choices in settings.axes.values())))
    return [_run(settings, variant, seed) for seed in settings.seeds for variant in variants]


def _run(settings: GridSettings, variant: tuple[tuple[str, list[str]], ...], seed: int) -> GridRun:
    labels = tuple(label for label, _ in variant)
    of_variant = [override for _, overrides in variant for override in overrides]
    of_seed = [override.replace("{seed}", str(seed)) for override in settings.seed_overrides]
    grid, name = Path(settings.folder), _run_name(labels, seed)
    overrides = [*settings.base, *of_variant, *of_seed]
    tracked_as = (grid.resolve().name, name)
    return GridRun(labels, seed, VerlRun(grid / name, overrides, settings.steps, tracked_as))
