"""Put the presets on Hydra's search path, so that it finds ``+algo=``, ``+platform=`` and ``+task=``."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf


class PresetSearchPath(SearchPathPlugin):  # type: ignore[misc]  # hydra ships no types
    """Append ``grpo_verl_ext/config`` behind verl's own folder, so that verl's files keep precedence."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folder; called by Hydra when it composes a configuration."""
        search_path.append(provider="grpo_verl_ext", path="pkg://grpo_verl_ext.config")


def install() -> None:
    """Register the folder with Hydra and ``${grpo_ext.share:…}`` with OmegaConf, in this process.

    Every process that imports verl has both: verl composes in the driver and resolves in its TaskRunner.
    """
    Plugins.instance().register(PresetSearchPath)
    OmegaConf.register_new_resolver("grpo_ext.share", share, replace=True)


def share(whole: int, part: int, of: int) -> int:
    """``whole · part / of``, rounded down, at least 1; for presets, as OmegaConf has no arithmetic.

    ``${grpo_ext.share:512,4096,20480}`` is 102.
    """
    return max(1, whole * part // of)
