"""Check every run of a grid before the first one starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.verl_plugin import preflight
from grpo_verl_ext.verl_plugin.compose import CompositionError, composed


def compose(runs: Sequence[GridRun]) -> dict[str, DictConfig]:
    """Compose verl's configuration of every run.

    Returns:
        Name of the run → configuration.

    Raises:
        AblationError: verl refuses the overrides; the message names the run.
    """
    configs = {}
    for run in runs:
        try:
            configs[run.name] = composed(run.training.arguments())
        except CompositionError as error:
            raise AblationError(f"{run.name}: verl refuses its overrides: {error}") from error
    return configs


def check(configs: dict[str, DictConfig]) -> None:
    """Run the driver's checks (`preflight`) on every run.

    Raises:
        AblationError: a check fails; the message names the run.
    """
    for name, config in configs.items():
        try:
            preflight.check(config)
        except (ValueError, OmegaConfBaseException) as error:
            raise AblationError(f"{name}: {error}") from error


def tasks_to_prepare(configs: dict[str, DictConfig]) -> list[tuple[str, int]]:
    """Names and seeds of the embedded tasks that runs need and that have not been prepared."""
    tasks = (config.get("task") for config in configs.values())
    return sorted(
        {
            (str(task.name), int(task.seed))
            for task in tasks
            if task is not None and task.get("name") in TASKS and not Path(task.folder).exists()
        }
    )
