"""Check that ``grpo_process`` gets step rewards, and that each token gets the advantage of its own steps."""

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.grpo import GRPO_LOSS
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import AGENT_LOOP, LOSS, setting
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS


def check_steps(config: DictConfig) -> None:
    """Refuse ``grpo_process`` with an agent loop that drops steps, or a loss that averages over them.

    `support` checks trainers and rewards.

    Raises:
        SettingError: the agent loop is verl's own, or the loss has one advantage for a response.
    """
    if not catalogue.learns_from_steps(config):
        return
    loop, loss = setting(config, AGENT_LOOP), catalogue.loss_of(config)
    if loop in AGENT_LOOPS:
        raise SettingError(
            AGENT_LOOP,
            loop,
            why="algorithm.adv_estimator=grpo_process needs an agent loop that keeps step rewards",
            valid=(*AGENT_LOOPS.values(), "one of yours"),
            fix=f"{AGENT_LOOP}={AGENT_LOOPS[loop]}",
        )
    if loss is not None and loss.one_advantage:
        raise SettingError(
            LOSS,
            loss.name,
            why="algorithm.adv_estimator=grpo_process has an advantage for each token, and this loss gives "
            "all tokens of a response their mean",
            valid="a loss of tokens",
            fix=f"{LOSS}={GRPO_LOSS.name}",
        )
