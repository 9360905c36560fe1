"""Register everything the package adds to verl, once per process; registering twice is harmless."""

import functools
import operator
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from wrapt import register_post_import_hook

from grpo_verl_ext.config import foreign_algorithms
from grpo_verl_ext.utils.files import cache_root
from grpo_verl_ext.utils.keys import PATCHES_VARIABLE
from grpo_verl_ext.verl_plugin import patches
from grpo_verl_ext.verl_plugin.cpu import chosen_platform, install_platform, sizes

_REGISTERING = {
    ".agent_loops.loops": "verl.experimental.agent_loop",
    ".rewards.manager": "verl.experimental.reward_loop.reward_manager",
    ".trainer_modes": "verl.trainer.ppo.v1",
    ".registries": "verl.trainer.ppo.core_algos",
}
"""Modules that register by verl's own decorators, each after verl has imported the registry."""

_RESOLVERS: Mapping[str, Callable[..., Any]] = {
    "cache": lambda: str(cache_root()),  # by the environment of the process that resolves
    "share": lambda whole, part, of: max(1, whole * part // of),  # rounded down: 512, 4096, 20480 is 102
    "equal": operator.eq,
    "all_null": lambda *values: all(value is None for value in values),
    # what Ray counts as GPUs: the ranks, and the servers of a distillation
    "cpu.slots": lambda ranks, distils, servers, nodes: ranks + servers * nodes * bool(distils),
    "cpu.max_model_len": sizes.max_model_len,
    "cpu.kv_cache_bytes": sizes.kv_cache_bytes,
    "cpu.bucket_megabytes": sizes.bucket_megabytes,
    "shares_prompts": lambda *, _root_: import_module(".shared_prompts.checks", __package__).allows(_root_),
    "cpu.micro_batch_tokens": sizes.micro_batch_tokens,
}
"""Arithmetic in presets, ``${grpo_ext.NAME:ARGUMENTS}``; the checks of `preflight` report a wrong setting."""


@functools.cache
def register() -> None:
    """Add the package's estimators, losses, trainer modes and presets to verl.

    Also installs the CPU platform (if ``VERL_PLATFORM=cpu``) and the patches that the driver has named.
    """
    Plugins.instance().register(_PresetSearchPath)
    for name, function in _RESOLVERS.items():
        OmegaConf.register_new_resolver(f"grpo_ext.{name}", function, replace=True)
    if chosen_platform() == "cpu":
        install_platform()
    for module, registry in _REGISTERING.items():
        register_post_import_hook(lambda _, name=module: import_module(name, __package__), registry)  # type: ignore[misc]
    for name in os.environ.get(PATCHES_VARIABLE, "").split(","):
        if (patch := patches.PATCHES.get(name)) is not None:
            apply = functools.partial(patches.apply_or_warn, patch.apply, name, patch.without)
            register_post_import_hook(apply, patch.module)


class _PresetSearchPath(SearchPathPlugin):  # type: ignore[misc]  # hydra ships no types
    """Append ``grpo_verl_ext/config``, then other packages', to Hydra's search path, after verl's folder."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folder; called by Hydra when it composes a configuration."""
        search_path.append(provider="grpo_verl_ext", path="pkg://grpo_verl_ext.config")
        for entry, presets in foreign_algorithms().items():
            search_path.append(provider=entry.name, path=f"file://{presets}")
