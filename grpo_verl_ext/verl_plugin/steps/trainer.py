"""Collect the step rewards of a rollout batch, and pass them to ``grpo_process``, the metrics and the dump.

The agent loops store them with each response.
"""

from itertools import islice
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import ragged
from grpo_verl_ext.utils.keys import ROLLOUT
from grpo_verl_ext.verl_plugin.batch.fields import are_responses, nested
from grpo_verl_ext.verl_plugin.rollout.agent_loops import SINGLE_TURN
from grpo_verl_ext.verl_plugin.wire import DUMPED_COLUMNS, STEPS, BatchSteps, Field


class ProcessSupervisionMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Pass the steps of responses to the estimator ``grpo_process``, metrics and dump."""

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Set the steps while verl calls the estimator."""
        if not catalogue.learns_from_steps(self.config):
            return super()._compute_advantage(batch, metrics)
        steps = collected(batch, nested(batch, "extra_fields"))
        metrics.update(metrics_of_steps(steps, responses=sum(are_responses(batch))))
        with STEPS.set(steps):
            return super()._compute_advantage(batch, metrics)

    def _log_rollout_data(self, batch: Any, *args: Any, **kwargs: Any) -> None:
        """Set the steps' columns while verl dumps a training step."""
        if not catalogue.learns_from_steps(self.config):
            super()._log_rollout_data(batch, *args, **kwargs)
            return
        with DUMPED_COLUMNS.set(dumped_columns(batch, nested(batch, "extra_fields", "advantages"))):
            super()._log_rollout_data(batch, *args, **kwargs)

    def _dump_generations(self, *, reward_extra_infos_dict: dict[str, Any], **kwargs: Any) -> None:
        """Add the steps' columns to verl's, by ``uid``."""
        added = DUMPED_COLUMNS.get() or {}
        keys = reward_extra_infos_dict.get("uid", [])
        columns = {name: [of_key[key] for key in keys] for name, of_key in added.items()}
        super()._dump_generations(reward_extra_infos_dict=reward_extra_infos_dict | columns, **kwargs)


def collected(batch: Any, data: TensorDict) -> BatchSteps:
    """Return all steps of the batch in the order of its rows; verl's padding rows have none.

    Args:
        batch: verl's KVBatchMeta: keys and tags of the rows.
        data: the rows' ``extra_fields``.

    Raises:
        ValueError: a response's steps do not fit it, or are missing; the message names the row.
    """
    rewards: list[float] = []
    rows: list[int] = []
    ends: list[int] = []
    extra_fields = tu.get(data, "extra_fields")
    for row, (extra, is_response) in enumerate(zip(extra_fields, are_responses(batch), strict=True)):
        if not is_response:
            continue
        _refuse_wrong_steps(batch.keys[row], extra)
        for reward, end in extra[Field.STEPS]:
            rewards.append(reward)
            rows.append(row)
            ends.append(end)
    return BatchSteps(
        rewards=torch.tensor(rewards, dtype=torch.float32),
        row=torch.tensor(rows, dtype=torch.int64),
        end=torch.tensor(ends, dtype=torch.int64),
    )


def metrics_of_steps(steps: BatchSteps, responses: int) -> dict[str, float]:
    """Return metrics of the steps; verl's ``critic/score`` and ``critic/rewards`` are the outcome's."""
    if len(steps.rewards) == 0:
        return {"critic/step_rewards/per_response": 0.0}
    return {
        "critic/step_rewards/mean": steps.rewards.mean().item(),
        "critic/step_rewards/max": steps.rewards.max().item(),
        "critic/step_rewards/min": steps.rewards.min().item(),
        "critic/step_rewards/per_response": len(steps.rewards) / responses,
    }


def dumped_columns(batch: Any, data: TensorDict) -> dict[str, dict[str, list[float]]]:
    """Return more columns for verl's rollout dump: column → the row's key → one value per step.

    verl's padding rows have a copy of another row's steps, and none here.

    Args:
        batch: as above.
        data: the rows' ``extra_fields`` and ``advantages``.
    """
    extra_fields = tu.get(data, "extra_fields")
    own = {
        key: extra.get(Field.STEPS, []) if is_response else []
        for key, extra, is_response in zip(batch.keys, extra_fields, are_responses(batch), strict=True)
    }
    row = [number for number, steps in enumerate(own.values()) for _ in steps]
    end = [end for steps in own.values() for _, end in steps]
    advantages = data["advantages"]
    taught = iter(
        ragged.at(
            advantages.values(),
            advantages.offsets(),
            torch.tensor(row, dtype=torch.int64),
            torch.tensor(end, dtype=torch.int64),
        ).tolist()
    )
    return {
        "step_rewards": {key: [reward for reward, _ in steps] for key, steps in own.items()},
        "step_end_tokens": {key: [end for _, end in steps] for key, steps in own.items()},
        "step_advantages": {key: list(islice(taught, len(steps))) for key, steps in own.items()},
    }


def _refuse_wrong_steps(key: str, extra: dict[str, Any]) -> None:
    remedy = "correct the reward function (reward.custom_reward_function.path)"
    if Field.STEP_ERROR in extra:
        raise ValueError(
            f"the steps of response {key} ({{prompt}}_{{session}}_{{index}}) do not fit it: "
            f"{extra[Field.STEP_ERROR]}. Please {remedy}"
        )
    if Field.STEPS not in extra:
        raise ValueError(
            f"response {key} ({{prompt}}_{{session}}_{{index}}) has no step rewards; valid is a reward "
            f"function that returns step_rewards with step_ends or step_end_tokens, and an agent loop that "
            f"keeps them, named by {ROLLOUT}.agent.default_agent_loop or the data's agent_name, such as "
            f"{SINGLE_TURN}. Please {remedy}"
        )
