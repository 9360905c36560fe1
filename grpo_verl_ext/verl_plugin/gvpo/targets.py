"""GVPO's targets for an anchor that is not the policy of the rollout."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_verl_ext.algorithms import gvpo, ragged
from grpo_verl_ext.algorithms.groups import dense_group_ids
from grpo_verl_ext.catalogue.gvpo import ANCHORS, alpha_of
from grpo_verl_ext.verl_plugin.features import all_features
from grpo_verl_ext.verl_plugin.wire import Field

ANCHOR_FIELDS = ANCHORS | {name: field for each in all_features() for name, field in each.anchors.items()}
"""Value of ``gvpo_anchor`` → field of the batch with the anchor's log-probs."""


def anchored_targets(rows: Any, prompts: Sequence[str], anchor: str, policy_loss: Any) -> Tensor:
    """Return GVPO's targets for an anchor, made of the estimator's R − R̄, for tokens laid end to end: (N,).

    Args:
        rows: fields of verl's batch, ragged.
        prompts: the prompt id of each row.
        anchor: the field with its log-probs, ragged, or (rows,) sums over the tokens of each.
        policy_loss: verl's section ``actor.policy_loss``.
    """
    mask, offsets = rows["response_mask"].values(), rows["response_mask"].offsets()
    member = ragged.row_has_tokens(mask, offsets)
    old_log_prob = rows[Field.OLD_LOG_PROBS].values()
    if rows[anchor].is_nested:
        log_ratio = ragged.row_log_ratio(old_log_prob, rows[anchor].values(), mask, offsets)
    else:
        log_ratio = ragged.row_sums(old_log_prob, mask, offsets) - rows[anchor]
    lengths = ragged.row_lengths(mask, offsets)
    weighted = gvpo.length_weight(lengths, alpha_of(policy_loss)) * log_ratio
    rewards = ragged.row_values(rows["advantages"].values(), mask, offsets).double()
    group = dense_group_ids(prompts)
    targets = gvpo.anchored(rewards, weighted, group, member, policy_loss.gvpo_beta)
    targets = targets.to(torch.promote_types(old_log_prob.dtype, torch.float32))
    return ragged.on_row_tokens(targets, mask, offsets)
