"""Check how many responses a prompt has, and that GVPO's groups stay together."""

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext.verl_plugin.config import ACTOR, ROLLOUT, TRAINER_MODES, Options
from grpo_verl_ext.verl_plugin.errors import Problem, SettingError
from grpo_verl_ext.verl_plugin.estimators import ESTIMATORS
from grpo_verl_ext.verl_plugin.rules import is_count


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
    """Refuse settings that break up groups, and GVPO with the anchor ``ref`` but no reference.

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
    if config.algorithm.adv_estimator == "gvpo":
        _refuse_gvpo(config)


def advise_groups(config: DictConfig) -> Iterator[Problem]:
    """Warn of GVPO settings that are allowed but outside the conditions of its Theorem 2."""
    if config.algorithm.adv_estimator != "gvpo":
        return
    rollout = config.actor_rollout_ref.rollout
    if rollout.top_p < 1 or rollout.top_k > 0:
        name = "top_p" if rollout.top_p < 1 else "top_k"
        yield Problem(
            f"{ROLLOUT}.{name}",
            rollout[name],
            why="some responses then have probability 0, and Theorem 2 of GVPO, whose condition is full "
            "support, does not hold",
            fix=f"{ROLLOUT}.top_p=1 {ROLLOUT}.top_k=-1",
        )
    if (config.algorithm.get("rollout_correction") or {}).get("rollout_is"):
        yield Problem(
            "algorithm.rollout_correction.rollout_is",
            config.algorithm.rollout_correction.rollout_is,
            why="the loss gvpo does not use importance weights: by Theorem 2 the minimiser is the same for "
            "every sampling distribution",
            fix="algorithm.rollout_correction.rollout_is=null",
        )


def _refuse_gvpo(config: DictConfig) -> None:
    actor = config.actor_rollout_ref.actor
    if Options.from_config(config.algorithm).gvpo_anchor != "ref":
        return
    if not (actor.use_kl_loss or config.algorithm.use_kl_in_reward):
        raise SettingError(
            f"{ACTOR}.use_kl_loss",
            False,
            why="algorithm.grpo_ext.gvpo_anchor is ref, and verl then loads no reference",
            valid="true",
            fix=f"{ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_coef=0",
        )
