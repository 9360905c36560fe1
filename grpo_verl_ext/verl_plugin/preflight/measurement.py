"""Check the seeds of requests before any rollout; `preflight.support` checks trainers."""

from omegaconf import DictConfig

from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, ROLLOUT, SEED_REQUESTS, SEEDED_ROLLOUTS, Options
from grpo_verl_ext.verl_plugin.errors import SettingError


def check_seeds(config: DictConfig) -> None:
    """Refuse seeds that no agent loop would pass on, or that the rollout's engine would not take.

    Raises:
        SettingError: the first wrong setting.
    """
    if Options.from_config(config.algorithm).seed_requests is None:
        return
    rollout = config.actor_rollout_ref.rollout
    if rollout.name not in SEEDED_ROLLOUTS:
        key = f"{ROLLOUT}.name"
        raise SettingError(
            key,
            rollout.name,
            why=f"{SEED_REQUESTS} needs requests that take a seed",
            valid=SEEDED_ROLLOUTS,
            fix=f"{key}={SEEDED_ROLLOUTS[0]}, or ~{SEED_REQUESTS}",
        )
    loop = rollout.agent.default_agent_loop
    if loop not in AGENT_LOOPS.values():
        key = f"{ROLLOUT}.agent.default_agent_loop"
        raise SettingError(
            key,
            loop,
            why=f"{SEED_REQUESTS} needs an agent loop that passes seeds on",
            valid=tuple(AGENT_LOOPS.values()),
            fix=f"{key}={AGENT_LOOPS.get(loop, 'grpo_ext_single_turn_agent')}",
        )
