"""GVPO's targets for the anchor π_ref: the part in the trainer."""

from typing import Any

from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import gvpo, ragged
from grpo_verl_ext.algorithms.groups import dense_group_ids
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.batch.fields import like, nested, prompt_ids, put
from grpo_verl_ext.verl_plugin.config import Options

_FOR_TARGETS = (wire.Field.OLD_LOG_PROBS, wire.Field.REF_LOG_PROB, "advantages")


class GvpoMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Give GVPO's loss targets for its anchor, and the workers the anchor's name."""

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Turn rewards into targets for π_ref, if that is the anchor."""
        batch = super()._compute_advantage(batch, metrics)
        if not (catalogue.has_groups(self.config) and self._is_anchored_at_reference):
            return batch
        rows = nested(batch, "response_mask", *_FOR_TARGETS)
        beta = self.config.actor_rollout_ref.actor.policy_loss.gvpo_beta
        targets = _anchored_at_reference(rows, dense_group_ids(prompt_ids(batch)), beta)
        return put(batch, {"advantages": targets, "returns": targets})

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Pass the workers the anchor's log-probs by name, and the number of prompts."""
        batch.extra_info[wire.Field.ANCHOR] = (
            wire.Field.REF_LOG_PROB if self._is_anchored_at_reference else wire.Field.OLD_LOG_PROBS
        )
        batch.extra_info[wire.Field.NUM_GROUPS] = len(set(prompt_ids(batch)))
        return super()._update_actor(batch, metrics)

    @property
    def _is_anchored_at_reference(self) -> bool:
        return Options.of_training(self.config.algorithm).gvpo_anchor == "ref"


def _anchored_at_reference(rows: TensorDict, group: Tensor, beta: float) -> Tensor:
    """Turn the estimator's R − R̄ into GVPO's targets for the anchor π_ref, ragged as in verl's batch."""
    old_log_prob, ref_log_prob, advantages = (rows[name].values() for name in _FOR_TARGETS)
    mask, offsets = rows["response_mask"].values(), rows["response_mask"].offsets()
    member = ragged.row_has_tokens(mask, offsets)
    log_ratio = ragged.row_log_ratio(old_log_prob, ref_log_prob, mask, offsets)
    centred_rewards = ragged.row_values(advantages, mask, offsets).to(log_ratio.dtype)
    targets = gvpo.anchored(centred_rewards, log_ratio, group, member, beta)
    return like(rows["response_mask"], ragged.on_row_tokens(targets, mask, offsets))
