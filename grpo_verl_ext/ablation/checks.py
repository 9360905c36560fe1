"""The whole grid is known to compose before its first run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.verl_plugin import preflight
from grpo_verl_ext.verl_plugin.compose import CompositionError, composed


def compose(runs: Sequence[GridRun]) -> dict[str, DictConfig]:
    """verl's configuration of every run, by its name.

    Raises:
        AblationError: verl would refuse one; the message names the run.
    """
    configs = {}
    for run in runs:
        try:
            configs[run.name] = composed(run.training.arguments())
        except CompositionError as error:
            raise AblationError(f"{run.name}: verl refuses its overrides: {error}") from error
    return configs


def check(configs: dict[str, DictConfig]) -> None:
    """What verl's driver would refuse in a run is refused before the first.

    Raises:
        AblationError: the message names the run.
    """
    for name, config in configs.items():
        try:
            preflight.check(config)
        except (ValueError, OmegaConfBaseException) as error:
            raise AblationError(f"{name}: {error}") from error


def tasks_to_prepare(configs: dict[str, DictConfig]) -> list[int]:
    """Seeds of the embedded task that runs need and that are not there."""
    tasks = (config.get("task") for config in configs.values())
    return sorted(
        {
            int(task.seed)
            for task in tasks
            if task is not None and task.get("name") == "chain_sum" and not Path(task.folder).exists()
        }
    )
