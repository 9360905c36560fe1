"""Collect the rewards of a rollout batch one by one, and pass them to ``gdpo_outcome``.

verl passes an estimator the sum alone; the others travel with each response as the reward function reported
them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from grpo_verl_ext import catalogue
from grpo_verl_ext.rewards.functions import is_number
from grpo_verl_ext.verl_plugin.batch.fields import are_responses, nested
from grpo_verl_ext.verl_plugin.batch.sessions import last_outputs
from grpo_verl_ext.verl_plugin.wire import SEVERAL_REWARDS


class SeveralRewardsMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Pass each reward of ``algorithm.gdpo_reward_keys`` to the estimator."""

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Set the rewards while verl calls the estimator."""
        if not catalogue.learns_from_several_rewards(self.config):
            return super()._compute_advantage(batch, metrics)
        keys = list(self.config.algorithm.gdpo_reward_keys)
        with SEVERAL_REWARDS.set(collected(batch, nested(batch, "extra_fields"), keys)):
            return super()._compute_advantage(batch, metrics)


def collected(batch: Any, data: TensorDict, keys: Sequence[str]) -> Tensor:
    """Return the rewards of each row, (B, M) in the order of the keys.

    Rows of verl's padding, and all but the last output of a session, have zeros.

    Args:
        batch: verl's KVBatchMeta: keys and tags of the rows.
        data: the rows' ``extra_fields``.

    Raises:
        ValueError: a response has not all of them as numbers; the message names the row.
    """
    last = last_outputs(batch.keys)
    rewards = torch.zeros(len(batch.keys), len(keys), dtype=torch.float64)
    extra_fields = tu.get(data, "extra_fields")
    for row, (extra, is_response) in enumerate(zip(extra_fields, are_responses(batch), strict=True)):
        if last[row] == row and is_response:
            reported = extra.get("reward_extra_info") or {}
            rewards[row] = torch.tensor([_number(batch.keys[row], reported, key) for key in keys])
    return rewards.float()


def _number(row: str, reported: Any, key: str) -> float:
    value = reported.get(key)
    if is_number(value):
        return float(value)
    numbers = [name for name, other in reported.items() if is_number(other)]
    several = f"'algorithm.gdpo_reward_keys=[{','.join(numbers)}]'"
    raise ValueError(
        f"response {row} ({{prompt}}_{{session}}_{{index}}) has {key}={value!r}, which "
        f"algorithm.gdpo_reward_keys names; valid are numbers that the reward function returns: "
        f"{', '.join(numbers) or 'it returned none'}. "
        f"Type: {several if len(numbers) > 1 else '+algo=grpo'}"
    )
