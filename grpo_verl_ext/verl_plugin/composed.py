"""verl's configuration composed from a command line, without starting anything."""

from collections.abc import Sequence

from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.verl_plugin.registration import register


class CompositionError(ValueError):
    """verl would refuse the command line; the message is Hydra's."""


def composed(overrides: Sequence[str]) -> DictConfig:
    """What ``python -m verl.trainer.main_ppo OVERRIDES`` would train with.

    Raises:
        CompositionError: an unknown preset or key, or a line that is no override.
    """
    register()
    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config: DictConfig = compose("ppo_trainer", overrides=[*overrides])
            return config
    except (HydraException, OmegaConfBaseException) as error:
        raise CompositionError(str(error)) from error
