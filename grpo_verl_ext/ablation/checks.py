"""Check the runs of a grid: all before the first one starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.utils.errors import as_typed


@dataclass(frozen=True)
class Plugin:
    """What the plugin knows of a training; the command line hands it in."""

    composed: Callable[[Sequence[str]], DictConfig]
    """verl's configuration from the arguments of ``main_ppo``; raises ValueError where verl would refuse."""
    check: Callable[[DictConfig], None]
    """Raises ValueError where the driver would refuse."""
    own_task: Callable[[DictConfig], DictConfig | None]
    """The section of a task of this package."""
    prepare: Callable[[str, int], object]
    """Prepares an embedded task with a seed."""


def compose_runs(runs: Sequence[GridRun], plugin: Plugin) -> dict[str, DictConfig]:
    """Compose verl's configuration of every run.

    Returns:
        Name of the run → configuration.
    """
    configs = {}
    for run in runs:
        try:
            configs[run.name] = plugin.composed(run.training.arguments())
            task = _embedded_task(configs[run.name], plugin)
        except (ValueError, OmegaConfBaseException) as error:
            raise AblationError(f"{run.name}: verl refuses its overrides: {error}") from error
        for key, least in (("actor_rollout_ref.rollout.n", 1), *([("task.seed", 0)] if task else [])):
            # verl would count with 8.0 and other text only once it has loaded everything
            value = OmegaConf.select(configs[run.name], key)
            if type(value) is not int or not least <= value < 2**63:
                valid = f"valid is an integer ≥ {least}. Type: {key}=8"
                raise AblationError(f"{run.name}: {key} is {as_typed(value)}; {valid}")
    return configs


def _embedded_task(config: DictConfig, plugin: Plugin) -> DictConfig | None:
    task = plugin.own_task(config)
    return task if task is not None and task.name in TASKS else None


def check_runs(configs: Mapping[str, DictConfig], plugin: Plugin) -> None:
    """Run the driver's checks on every run."""
    for name, config in configs.items():
        try:
            plugin.check(config)
        except (ValueError, OmegaConfBaseException) as error:
            raise AblationError(f"{name}: {error}") from error


def tasks_to_prepare(configs: Mapping[str, DictConfig], plugin: Plugin) -> list[tuple[str, int]]:
    """Names and seeds of the embedded tasks that runs need and that have not been prepared."""
    tasks = [_embedded_task(config, plugin) for config in configs.values()]
    needed = [task for task in tasks if task is not None and not Path(task.folder).exists()]
    return sorted({(str(task.name), int(task.seed)) for task in needed})
