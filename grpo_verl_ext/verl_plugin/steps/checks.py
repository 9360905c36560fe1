"""Check that ``grpo_process`` gets step rewards, and that each token gets the advantage of its own steps."""

from omegaconf import DictConfig

from grpo_verl_ext.verl_plugin.config import ACTOR, AGENT_LOOPS, ROLLOUT, setting
from grpo_verl_ext.verl_plugin.errors import SettingError

AGENT_LOOP = f"{ROLLOUT}.agent.default_agent_loop"
LOSS = f"{ACTOR}.policy_loss.loss_mode"
ONE_ADVANTAGE = ("gmpo", "geo_mean")
"""Losses with one advantage for a response; tokens with different ones all get their mean."""


def check_steps(config: DictConfig) -> None:
    """Refuse ``grpo_process`` with an agent loop that drops steps, or a loss that averages over them.

    `support` checks trainers and rewards.

    Raises:
        SettingError: the agent loop is verl's own, or the loss is one of `ONE_ADVANTAGE`.
    """
    if config.algorithm.adv_estimator != "grpo_process":
        return
    loop, loss = setting(config, AGENT_LOOP), setting(config, LOSS)
    if loop in AGENT_LOOPS:
        raise SettingError(
            AGENT_LOOP,
            loop,
            why="algorithm.adv_estimator=grpo_process needs an agent loop that keeps step rewards",
            valid=(*AGENT_LOOPS.values(), "one of yours"),
            fix=f"{AGENT_LOOP}={AGENT_LOOPS[loop]}",
        )
    if loss in ONE_ADVANTAGE:
        raise SettingError(
            LOSS,
            loss,
            why="algorithm.adv_estimator=grpo_process has an advantage for each token, and this loss gives "
            "all tokens of a response their mean",
            valid="a loss of tokens",
            fix=f"{LOSS}=grpo",
        )
