"""Which of verl's programs and trainer modes composed a training."""

from omegaconf import DictConfig

from grpo_verl_ext.utils.keys import FULLY_ASYNC, ONE_STEP_OFF, setting


def driver(config: DictConfig) -> str:
    """Return which of verl's programs composed this; two have a section that ``main_ppo`` lacks."""
    if FULLY_ASYNC in config:
        return "fully async"
    if ONE_STEP_OFF in config:
        return "one-step-off"
    return "v1" if setting(config, "trainer.use_v1", True) else "v0"
