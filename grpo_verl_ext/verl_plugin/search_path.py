"""Put the presets on Hydra's search path, so that it finds ``+algo=``, ``+platform=`` and ``+task=``."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin


class PresetSearchPath(SearchPathPlugin):  # type: ignore[misc]  # hydra ships no types
    """Append ``grpo_verl_ext/config`` behind verl's own folder, so that verl's files keep precedence."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folder; called by Hydra when it composes a configuration."""
        search_path.append(provider="grpo_verl_ext", path="pkg://grpo_verl_ext.config")


def install() -> None:
    """Register the folder with Hydra in this process."""
    Plugins.instance().register(PresetSearchPath)
