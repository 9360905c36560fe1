"""Pass rewards of steps, or several rewards of each response, to their estimators.

verl passes one reward for each response. The others travel with the response: steps as the agent loop stored
them, several rewards as the reward function reported them.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from grpo_verl_ext import catalogue
from grpo_verl_ext.rewards.functions import as_number
from grpo_verl_ext.utils.keys import AGENT_LOOP
from grpo_verl_ext.verl_plugin.batch.fields import are_responses, nested
from grpo_verl_ext.verl_plugin.batch.sessions import last_outputs
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS
from grpo_verl_ext.verl_plugin.wire import BatchSteps, Field, passing


class OtherRewardsMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Pass steps or several rewards to the estimator that learns from them; log and dump steps."""

    _dumped: Mapping[str, dict[str, list[float]]] = MappingProxyType({})
    """Column of verl's rollout dump → the row's key → one value for each step."""

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Set the rewards while verl calls the estimator."""
        shown: dict[str, Any] = {}
        if catalogue.learns_from_steps(self.config):
            steps = _collected_steps(batch, nested(batch, "extra_fields"))
            # verl's ``critic/score`` and ``critic/rewards`` are the outcome's
            rewards, name = steps.rewards, "critic/step_rewards"
            metrics[f"{name}/per_response"] = len(rewards) / max(1, sum(are_responses(batch)))
            if len(rewards):
                own = {"mean": rewards.mean(), "max": rewards.max(), "min": rewards.min()}
                metrics.update({f"{name}/{each}": value.item() for each, value in own.items()})
            shown["steps"] = steps
        elif catalogue.learns_from_several_rewards(self.config):
            keys, data = list(self.config.algorithm.gdpo_reward_keys), nested(batch, "extra_fields")
            shown["several_rewards"] = _collected_rewards(batch, data, keys)
        with passing(**shown):
            return super()._compute_advantage(batch, metrics)

    def _log_rollout_data(self, batch: Any, *args: Any, **kwargs: Any) -> None:
        """Have the columns of steps ready while verl dumps a training step; its padding rows have none."""
        if catalogue.learns_from_steps(self.config):
            data = nested(batch, "extra_fields", "advantages")
            rows = zip(batch.keys, tu.get(data, "extra_fields"), are_responses(batch), strict=True)
            own = {key: extra.get(Field.STEPS, []) if is_response else [] for key, extra, is_response in rows}
            of_rows = zip(own.items(), data["advantages"].unbind(), strict=True)
            self._dumped = {
                "step_rewards": {key: [reward for reward, _ in steps] for key, steps in own.items()},
                "step_end_tokens": {key: [end for _, end in steps] for key, steps in own.items()},
                "step_advantages": {
                    key: row[[end for _, end in steps]].tolist() for (key, steps), row in of_rows
                },
            }
        super()._log_rollout_data(batch, *args, **kwargs)
        self._dumped = {}

    def _dump_generations(self, *, reward_extra_infos_dict: dict[str, Any], **kwargs: Any) -> None:
        """Add the steps' columns to verl's, by ``uid``."""
        keys = reward_extra_infos_dict.get("uid", [])
        columns = {name: [of_key[key] for key in keys] for name, of_key in self._dumped.items()}
        super()._dump_generations(reward_extra_infos_dict=reward_extra_infos_dict | columns, **kwargs)


def _collected_steps(batch: Any, data: TensorDict) -> BatchSteps:
    """Return all steps of the batch in the order of its rows; verl's padding rows have none.

    ``data`` has the rows' ``extra_fields``. A ValueError names the first response whose steps do not fit it,
    or are missing.
    """
    flat = []
    remedy = "Please correct the reward function (reward.custom_reward_function.path)"
    extra_fields = tu.get(data, "extra_fields")
    for row, (extra, is_response) in enumerate(zip(extra_fields, are_responses(batch), strict=True)):
        if not is_response:
            continue
        response = f"response {batch.keys[row]} ({{prompt}}_{{session}}_{{index}})"
        if Field.STEP_ERROR in extra:
            raise ValueError(f"the steps of {response} do not fit it: {extra[Field.STEP_ERROR]}. {remedy}")
        if Field.STEPS not in extra:
            raise ValueError(
                f"{response} has no step rewards; valid is a reward function that returns step_rewards with "
                f"step_ends, and an agent loop that keeps them, named by {AGENT_LOOP} or "
                f"the data's agent_name, such as {AGENT_LOOPS['single_turn_agent']}. {remedy}"
            )
        flat += [(reward, row, end) for reward, end in extra[Field.STEPS]]
    rewards, rows, ends = torch.tensor(flat, dtype=torch.float64).reshape(-1, 3).unbind(1)
    return BatchSteps(rewards=rewards.float(), row=rows.long(), end=ends.long())


def _collected_rewards(batch: Any, data: TensorDict, keys: Sequence[str]) -> Tensor:
    """Return the rewards of each row, (B, M) in the order of the keys; zeros for rows that do not count."""
    last = last_outputs(batch.keys)
    rewards = torch.zeros(len(batch.keys), len(keys), dtype=torch.float64)
    extra_fields = tu.get(data, "extra_fields")
    for row, (extra, is_response) in enumerate(zip(extra_fields, are_responses(batch), strict=True)):
        if last[row] != row or not is_response:
            continue
        reported = extra.get("reward_extra_info") or {}
        numbers = [name for name, value in reported.items() if as_number(value) is not None]
        if missing := [key for key in keys if key not in numbers]:
            several = f"'algorithm.gdpo_reward_keys=[{','.join(numbers)}]'"
            raise ValueError(
                f"response {batch.keys[row]} ({{prompt}}_{{session}}_{{index}}) has "
                f"{missing[0]}={reported.get(missing[0])!r}, which algorithm.gdpo_reward_keys names; valid "
                f"are numbers that the reward function returns: {', '.join(numbers) or 'it returned none'}. "
                f"Type: {several if len(numbers) > 1 else '+algo@_global_=grpo'}"
            )
        rewards[row] = torch.tensor([float(reported[key]) for key in keys])
    return rewards.float()
