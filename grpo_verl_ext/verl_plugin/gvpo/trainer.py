"""GVPO's targets for an anchor that is not the policy of the rollout: the part in the trainer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import gvpo, ragged
from grpo_verl_ext.algorithms.groups import dense_group_ids
from grpo_verl_ext.catalogue.gvpo import alpha_of
from grpo_verl_ext.verl_plugin.batch.fields import like, nested, prompt_ids, put
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.wire import Field

ANCHORS = {"old": Field.OLD_LOG_PROBS, "ref": Field.REF_LOG_PROB, "teacher": Field.TEACHER_LOG_PROB}
"""Anchor → the field of the batch with its log-probs."""


class GvpoMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Give GVPO's loss targets for its anchor, and the workers the anchor's name."""

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Turn rewards into targets for an anchor other than the policy of the rollout."""
        batch = super()._compute_advantage(batch, metrics)
        if not catalogue.has_groups(self.config) or self._anchor == Field.OLD_LOG_PROBS:
            return batch
        rows = nested(batch, "response_mask", Field.OLD_LOG_PROBS, self._anchor, "advantages")
        policy_loss = self.config.actor_rollout_ref.actor.policy_loss
        targets = anchored_targets(rows, prompt_ids(batch), self._anchor, policy_loss)
        return put(batch, {"advantages": targets, "returns": targets})

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Pass the workers the anchor's log-probs by name, and the number of prompts."""
        batch.extra_info[Field.ANCHOR] = self._anchor
        batch.extra_info[Field.NUM_GROUPS] = len(set(prompt_ids(batch)))
        return super()._update_actor(batch, metrics)

    @property
    def _anchor(self) -> str:
        return ANCHORS[Options.of_training(self.config.algorithm).gvpo_anchor]


def anchored_targets(rows: Any, prompts: Sequence[str], anchor: str, policy_loss: Any) -> Tensor:
    """Turn the estimator's R − R̄ into GVPO's targets for an anchor, ragged as the rows of verl's batch."""
    mask, offsets = rows["response_mask"].values(), rows["response_mask"].offsets()
    member = ragged.row_has_tokens(mask, offsets)
    old_log_prob = rows[Field.OLD_LOG_PROBS].values()
    if anchor == Field.TEACHER_LOG_PROB:
        log_ratio = ragged.row_sums(old_log_prob, mask, offsets) - rows[anchor]
    else:
        log_ratio = ragged.row_log_ratio(old_log_prob, rows[anchor].values(), mask, offsets)
    lengths = ragged.row_lengths(mask, offsets)
    weighted = gvpo.length_weight(lengths, alpha_of(policy_loss)) * log_ratio
    rewards = ragged.row_values(rows["advantages"].values(), mask, offsets).double()
    group = dense_group_ids(prompts)
    targets = gvpo.anchored(rewards, weighted, group, member, policy_loss.gvpo_beta)
    targets = targets.to(torch.promote_types(old_log_prob.dtype, torch.float32))
    return like(rows["response_mask"], ragged.on_row_tokens(targets, mask, offsets))
