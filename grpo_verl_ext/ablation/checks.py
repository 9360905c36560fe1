"""Compose and check the configuration of each run of a grid before the first one, and hash its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.ablation.grid import AblationError, GridRun
from grpo_verl_ext.ablation.state import STARTS
from grpo_verl_ext.rewards.functions import file_of, is_function
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.errors import as_typed
from grpo_verl_ext.utils.files import module_file, sha256
from grpo_verl_ext.utils.keys import RUNTIME_ENVIRONMENT, SECTION, setting


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


def check_runs(configs: Mapping[str, DictConfig], plugin: Plugin, *, here: bool) -> None:
    """Prepare the embedded tasks that the runs need, and run the driver's checks if they are trained here."""
    for name, config in configs.items():
        task = _embedded_task(config, plugin)
        if task is not None and not Path(task.folder).exists():
            plugin.prepare(str(task.name), int(task.seed))
        try:
            if here:  # a cluster has its own devices, files and packages: the job checks them
                plugin.check(config)
        except (ValueError, OmegaConfBaseException) as error:
            raise AblationError(f"{name}: {error}") from error


_KEYS = (*STARTS, f"{SECTION}.gold_responses.files", f"{SECTION}.reward_model.path", "critic.model.path")
_WEIGHTS = "reward.custom_reward_function.reward_kwargs.weights"
_MODULES = "VERL_USE_EXTERNAL_MODULES"


def inputs_of(config: DictConfig) -> dict[str, str]:
    """Return the SHA-256 of the files that are on this machine, by key.

    These are models, data, rewards, and modules of the user's. A list's second file has the key
    ``data.train_files[1]``.
    """
    models, weights = setting(config, "distillation"), setting(config, _WEIGHTS)
    plain: Any = OmegaConf.to_container(models) if OmegaConf.is_dict(models) else {}
    keys = [*_KEYS, *(f"distillation.{name}" for name, _ in leaves(plain) if name.endswith(".model_path"))]
    named: dict[str, Any] = {key: setting(config, key) for key in keys}
    functions = [name for name in weights if is_function(name)] if isinstance(weights, Mapping) else []
    named |= {f"{_WEIGHTS}.{name}": file_of(name) for name in functions}
    modules = setting(config, f"{RUNTIME_ENVIRONMENT}.{_MODULES}") or os.environ.get(_MODULES, "")
    names = [name.strip() for name in modules.split(",") if name.strip()]
    named[_MODULES] = [file for file in map(module_file, names) if file]
    found = {}
    for key, files in named.items():
        for place, file in enumerate([files] if isinstance(files, str | Path) else files or []):
            path = Path(file).expanduser()
            if path.exists():
                found[f"{key}[{place}]" if place else key] = sha256(path)
    return found
