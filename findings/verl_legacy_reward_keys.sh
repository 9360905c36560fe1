#!/usr/bin/env bash
# One expects: a key that Hydra accepts is read, or refused.
# verl 0.9.1: `custom_reward_function.path` and `reward_model.reward_manager` still stand in `ppo_trainer.yaml`, main_ppo
# reads neither: the training learns from built-in scores, by manager `naive`, without a word. Three scripts of
# verl's examples and its page on reward functions use them. Pull request #7331 (closed without merging).
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" verl==0.9.1 torch==2.13.0 tensordict==0.10.0 transformers==5.10.4 ray==2.60.0
"$place/venv/bin/python" -W ignore - 2> "$place/stderr" << 'PYTHON' || { tail -5 "$place/stderr" >&2; exit 1; }
import sys
from typing import Any

SEEN = [
    'reward function: None',
    'reward manager: naive',
]
seen = []

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
    seen.append("reward function: %s" % config.reward.custom_reward_function.path)
    seen.append("reward manager: %s" % config.reward.reward_manager.name)


main_ppo.run_ppo = show
with initialize_config_module("verl.trainer.config", version_base=None):
    main_ppo.main.__wrapped__(compose("ppo_trainer", COMMAND))

print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
