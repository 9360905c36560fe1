"""What can be said of groups and GVPO from the configuration alone, before any rollout."""

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext.verl_plugin.findings import Advice, SettingError
from grpo_verl_ext.verl_plugin.keys import ACTOR, GROUP_MODES, ROLLOUT
from grpo_verl_ext.verl_plugin.settings import EstimatorSettings


def check_groups(config: DictConfig) -> None:
    """Refuse settings with which groups cannot be kept, or GVPO would be another algorithm.

    Raises:
        ValueError: the first thing wrong: key, value seen, valid values and the line to type.
    """
    actor, mode = config.actor_rollout_ref.actor, config.trainer.v1.trainer_mode
    if mode in GROUP_MODES and actor.shuffle:
        raise SettingError(
            f"{ACTOR}.shuffle is true, but trainer.v1.trainer_mode={mode} keeps the responses of a prompt in "
            f"one optimizer step, and each rank shuffles its own rows; valid is false. "
            f"Type: {ACTOR}.shuffle=false",
            key=f"{ACTOR}.shuffle",
        )
    if config.algorithm.adv_estimator == "gvpo":
        _refuse_gvpo(config)


def advise_groups(config: DictConfig) -> Iterator[Advice]:
    """What is allowed, but not what the paper proves."""
    if config.algorithm.adv_estimator != "gvpo":
        return
    rollout = config.actor_rollout_ref.rollout
    if rollout.top_p < 1 or rollout.top_k > 0:
        yield Advice(
            f"{ROLLOUT}.top_p={rollout.top_p} top_k={rollout.top_k} give some responses probability 0, "
            f"so Theorem 2 of GVPO, whose condition is full support, does not hold. "
            f"Type: {ROLLOUT}.top_p=1 {ROLLOUT}.top_k=-1",
            f"{ROLLOUT}.top_p" if rollout.top_p < 1 else f"{ROLLOUT}.top_k",
        )
    if (config.algorithm.get("rollout_correction") or {}).get("rollout_is"):
        yield Advice(
            "algorithm.rollout_correction.rollout_is makes importance weights, which the loss gvpo does not "
            "use: by Theorem 2 the minimiser is the same for every sampling distribution. "
            "Type: algorithm.rollout_correction.rollout_is=null",
            "algorithm.rollout_correction.rollout_is",
        )


def _refuse_gvpo(config: DictConfig) -> None:
    settings = EstimatorSettings.from_config(config.algorithm)
    actor = config.actor_rollout_ref.actor
    beta = actor.policy_loss.get("gvpo_beta")
    if settings.gvpo_beta != beta:
        raise SettingError(
            f"algorithm.grpo_ext.gvpo_beta is {settings.gvpo_beta}, but {ACTOR}.policy_loss.gvpo_beta is "
            f"{beta}; valid is one β. "
            f"Type: '{ACTOR}.policy_loss.gvpo_beta=${{algorithm.grpo_ext.gvpo_beta}}'",
            key=f"{ACTOR}.policy_loss.gvpo_beta",
        )
    if settings.gvpo_anchor != "ref":
        return
    if not (actor.use_kl_loss or config.algorithm.use_kl_in_reward):
        raise SettingError(
            f"algorithm.grpo_ext.gvpo_anchor is ref, but {ACTOR}.use_kl_loss is false, so verl loads no "
            f"reference; valid is true. Type: {ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_coef=0",
            key=f"{ACTOR}.use_kl_loss",
        )
