"""Register everything the package adds to verl, once per process; registering twice is harmless."""

import functools
from importlib import import_module
from types import ModuleType

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from wrapt import register_post_import_hook

from grpo_verl_ext.config import foreign_algorithms, presets_of
from grpo_verl_ext.verl_plugin import patches, resolvers
from grpo_verl_ext.verl_plugin.cpu import is_cpu_chosen

_REGISTERING = {
    ".rewards.manager": "verl.experimental.reward_loop.reward_manager",
    ".trainer_modes": "verl.trainer.ppo.v1",
    ".algorithms": "verl.trainer.ppo.core_algos",
}


@functools.cache
def register() -> None:
    """Add the package's estimators, losses, trainer modes and presets to verl.

    Also installs the CPU platform (if ``VERL_PLATFORM=cpu``) and the patches that the driver has named.
    """
    Plugins.instance().register(_PresetSearchPath)
    resolvers.install_resolvers()
    if is_cpu_chosen():
        from grpo_verl_ext.verl_plugin import cpu

        cpu.install_platform()
    register_post_import_hook(_register_agent_loops, "verl.experimental.agent_loop")
    # Modules that register by verl's own decorators, each after verl has imported the registry.
    for module, registry in _REGISTERING.items():
        register_post_import_hook(lambda _, name=module: import_module(name, __package__), registry)  # type: ignore[misc]
    patches.install_patches()


def _register_agent_loops(_agent_loop: ModuleType) -> None:
    from grpo_verl_ext.verl_plugin.features import all_features, load_named

    for feature in all_features():
        for module in feature.agent_loops.values():
            load_named(module)


class _PresetSearchPath(SearchPathPlugin):  # type: ignore[misc]  # hydra ships no types
    """Append ``grpo_verl_ext/config``, then other packages', to Hydra's search path, after verl's folder."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folder; called by Hydra when it composes a configuration."""
        search_path.append(provider="grpo_verl_ext", path="pkg://grpo_verl_ext.config")
        for entry in foreign_algorithms():
            search_path.append(provider=entry.name, path=f"file://{presets_of(entry)}")
