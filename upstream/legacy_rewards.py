"""Print what a training of verl has of rewards that its command names by the keys of older versions."""

from typing import Any

from hydra import compose, initialize_config_module
from verl.trainer import main_ppo

COMMAND = [
    "custom_reward_function.path=mine.py",
    "reward_model.reward_manager=dapo",
    "trainer.device=cpu",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
]


def show(config: Any, **_: Any) -> None:
    """Stand for the training."""
    print("reward function:", config.reward.custom_reward_function.path)
    print("reward manager:", config.reward.reward_manager.name)


main_ppo.run_ppo = show
with initialize_config_module("verl.trainer.config", version_base=None):
    main_ppo.main.__wrapped__(compose("ppo_trainer", COMMAND))
