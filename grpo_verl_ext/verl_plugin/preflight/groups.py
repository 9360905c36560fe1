"""Check how many responses a prompt has, and that they stay together."""

from omegaconf import DictConfig

from grpo_verl_ext.catalogue import ESTIMATORS
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import ACTOR, ROLLOUT
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES


def check_group_size(config: DictConfig) -> None:
    """Refuse our estimators, which compare the responses of a prompt, with fewer than two."""
    estimator, n = config.algorithm.adv_estimator, config.actor_rollout_ref.rollout.n
    if estimator in ESTIMATORS and not (is_count(n) and n >= 2):
        one = "and one has nothing to be compared with: every advantage would be 0"
        raise SettingError(
            f"{ROLLOUT}.n",
            n,
            why=f"algorithm.adv_estimator={estimator} compares the responses of a prompt with each other, "
            + (one if n == 1 else "whose number this is to be"),
            valid="an integer ≥ 2",
            fix=f"{ROLLOUT}.n=8",
        )


def check_groups(config: DictConfig) -> None:
    """Refuse settings that break up groups.

    Raises:
        SettingError: the first wrong setting.
    """
    actor, mode = config.actor_rollout_ref.actor, config.trainer.v1.trainer_mode
    if mode in TRAINER_MODES and actor.shuffle:
        raise SettingError(
            f"{ACTOR}.shuffle",
            True,
            why=f"trainer.v1.trainer_mode={mode} keeps the responses of a prompt in one optimizer step, and "
            "each rank shuffles its own rows",
            valid="false",
            fix=f"{ACTOR}.shuffle=false",
        )
