"""What step rewards need, checked before any rollout."""

from omegaconf import DictConfig

from grpo_verl_ext.verl_plugin.errors import SettingError

VERLS_AGENT_LOOPS = {"single_turn_agent": "step_single_turn_agent", "tool_agent": "step_tool_agent"}
"""verl's own, which drop step rewards, and ours that keep them."""


def check_steps(config: DictConfig) -> None:
    """The estimator ``grpo_process`` needs an agent loop that keeps steps; `support` sees to the trainer.

    Raises:
        ValueError: key, value seen, valid values and the line to type.
    """
    if config.algorithm.adv_estimator != "grpo_process":
        return
    key = "actor_rollout_ref.rollout.agent.default_agent_loop"
    loop = config.actor_rollout_ref.rollout.agent.default_agent_loop
    if loop in VERLS_AGENT_LOOPS:
        raise SettingError(
            key,
            loop,
            why="algorithm.adv_estimator=grpo_process needs an agent loop that keeps step rewards",
            valid=(*VERLS_AGENT_LOOPS.values(), "one of yours"),
            fix=f"{key}={VERLS_AGENT_LOOPS[loop]}",
        )
