"""MaxRL: Tajwar et al., Maximum Likelihood Reinforcement Learning, arXiv 2602.02710."""

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext.algorithms.advantages import mean_scaled
from grpo_verl_ext.catalogue.dapo import DAPO_LOSS
from grpo_verl_ext.catalogue.record import Algorithm, Estimator
from grpo_verl_ext.catalogue.verls import overlong_punishment
from grpo_verl_ext.utils.errors import Line, Problem
from grpo_verl_ext.utils.keys import ACTOR, setting


def _advise_rewards(config: DictConfig) -> Iterator[Problem]:
    """Warn of what verl subtracts from a reward: at the first one below 0 the training ends."""
    why = "MaxRL divides by the mean reward of a prompt and ends the training at a reward below 0, which"
    if setting(config, "algorithm.use_kl_in_reward"):
        key = "algorithm.use_kl_in_reward"
        fix = Line(f"{key}=false", f"{ACTOR}.use_kl_loss=true")
        yield Problem(key, True, why=f"{why} this KL makes of 0", valid="false", fix=fix)
    if overlong_punishment(config):
        key = "reward.reward_kwargs.overlong_buffer_cfg.enable"
        yield Problem(
            key,
            True,
            why=f"{why} verl's punishment makes of a long response's 0",
            valid="false, or rewards that are at least the punishment",
            fix=Line(f"{key}=false"),
        )


MAXRL = Algorithm(
    "maxrl",
    "arXiv 2602.02710",
    Estimator("maxrl", str(mean_scaled.__doc__), mean_scaled, advice={"maxrl-rewards": _advise_rewards}),
    DAPO_LOSS,
    title="Tajwar et al., Maximum Likelihood Reinforcement Learning",
    fixes="expected reward, by which rare right answers count little",
)
