"""What a user writes for ``grpo-verl-ext ablate``: a base, axes, seeds, metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.typed_yaml import read_typed_yaml

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")
"""Labels become names of folders."""


class AblationError(ValueError):
    """A grid, or the folder it names, cannot be used; the message has the line to type."""


@dataclass
class GridSettings:
    """All of it."""

    folder: str = MISSING
    """Where everything goes, a folder for each run."""
    steps: int = MISSING
    """Training steps of every run."""
    base: list[str] = MISSING
    """verl's command line as far as all runs have it in common."""
    axes: dict[str, dict[str, list[str]]] = MISSING
    """Axis → label → overrides. Axes are crossed; what is to change together is one choice."""
    seeds: list[int] = MISSING
    """Every variant is run with each of them."""
    seed_overrides: list[str] = field(
        default_factory=lambda: ["data.seed={seed}", "++actor_rollout_ref.rollout.seed={seed}"]
    )
    """What a seed decides, the same for all variants: that is what pairs the runs."""
    baseline: list[str] = MISSING
    """A label of each axis, in their order: the variant that the others are compared with."""
    metrics: list[str] = MISSING
    """Names of verl's metrics to compare, the most important first."""
    right_above: float | None = None
    """A response is right if its score is above; for what the report says of right and of wrong ones."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the folder, which may be moved."""
        values = asdict(self)
        del values["folder"]
        return values


def read_grid(file: Path, overrides: Sequence[str] = ()) -> GridSettings:
    """Read the file, let ``key=value`` of the command line win, and check what can be checked without verl.

    Raises:
        AblationError: no such file, no YAML, an unknown key, a missing or a wrong value.
    """
    settings = read_typed_yaml(file, overrides, GridSettings, AblationError)
    _check_values(settings)
    _check_labels(settings)
    return settings


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
        for label in choices:
            if not LABEL.fullmatch(label):
                raise AblationError(
                    f"axes.{axis} has the label {label!r}, which names folders; valid are letters, "
                    f"digits and . _ + = - in it. Rename it"
                )
    valid = [list(choices) for choices in settings.axes.values()]
    if len(settings.baseline) != len(valid) or any(
        label not in labels for label, labels in zip(settings.baseline, valid, strict=False)
    ):
        raise AblationError(
            f"baseline is {settings.baseline}; valid is one label of each axis, in their order: "
            + ", ".join(f"{axis}: {' | '.join(choices)}" for axis, choices in settings.axes.items())
            + f". Type: 'baseline=[{','.join(labels[0] for labels in valid)}]'"
        )


SEPARATOR = ","


@dataclass(frozen=True)
class GridRun:
    """One training: a variant and a seed."""

    labels: tuple[str, ...]
    """The variant: a label of each axis."""
    seed: int
    training: VerlRun

    @property
    def variant(self) -> str:
        """The labels as one name."""
        return variant_name(self.labels)

    @property
    def name(self) -> str:
        """Variant and seed."""
        return f"{self.variant}/seed-{self.seed}"


def variant_name(labels: tuple[str, ...] | list[str]) -> str:
    """The labels of a variant as one name, of a folder, too."""
    return SEPARATOR.join(labels)


def runs_of(settings: GridSettings) -> list[GridRun]:
    """All of them, seed by seed, so that a grid that is stopped early has whole comparisons."""
    variants = list(product(*(choices.items() for choices in settings.axes.values())))
    return [_run(settings, variant, seed) for seed in settings.seeds for variant in variants]


def _run(settings: GridSettings, variant: tuple[tuple[str, list[str]], ...], seed: int) -> GridRun:
    labels = tuple(label for label, _ in variant)
    of_variant = [override for _, overrides in variant for override in overrides]
    of_seed = [override.replace("{seed}", str(seed)) for override in settings.seed_overrides]
    folder = Path(settings.folder) / variant_name(labels) / f"seed-{seed}"
    return GridRun(labels, seed, VerlRun(folder, [*settings.base, *of_variant, *of_seed], settings.steps))
