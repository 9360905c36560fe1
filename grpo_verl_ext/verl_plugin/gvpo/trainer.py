"""GVPO's part in verl's trainer: targets for its anchor, and the anchor's name for the workers."""

from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from grpo_verl_ext import catalogue
from grpo_verl_ext.verl_plugin.batch.fields import like, nested, prompt_ids, put
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.estimators import anchored_targets
from grpo_verl_ext.verl_plugin.wire import Field


class GvpoMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Give GVPO's loss targets for its anchor, and the workers the anchor's name."""

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        anchor = Options.from_config(self.config.algorithm).anchor_field
        if catalogue.has_groups(self.config) and anchor != Field.OLD_LOG_PROBS:
            rows = nested(batch, "response_mask", Field.OLD_LOG_PROBS, anchor, "advantages")
            policy_loss = self.config.actor_rollout_ref.actor.policy_loss
            flat = anchored_targets(rows, prompt_ids(batch), anchor, policy_loss)
            targets = like(rows["response_mask"], flat)
            batch = put(batch, {"advantages": targets, "returns": targets})
        batch.extra_info.update({Field.ANCHOR: anchor, Field.NUM_GROUPS: len(set(prompt_ids(batch)))})
        return batch
