"""The runs of a grid: variants × seeds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from grpo_verl_ext.ablation.settings import GridSettings
from grpo_verl_ext.runs.verl_run import VerlRun

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
