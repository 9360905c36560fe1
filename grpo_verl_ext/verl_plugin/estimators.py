"""Advantage estimators with verl's signature, made from records of the catalogue.

verl calls one in the driver with the whole rollout batch: ``token_level_rewards`` and ``response_mask``
(B, T), ``index`` the prompt id of each row, ``config`` verl's ``algorithm`` section. All return
``(advantages, returns)``, (B, T) each and equal, as verl's own outcome estimators do.

As with verl's ``grpo``, every response counts in mean and standard deviation, even with no token in
``response_mask`` (all rejected, or none written), except where a record's weights must sum to zero
(`Estimator.sums_to_zero`). Of a session with several outputs the last counts, and all get its advantage
(`batch.sessions`). Padding rows never count.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import gvpo, ragged
from grpo_verl_ext.algorithms.groups import dense_group_ids
from grpo_verl_ext.algorithms.process import process_advantages
from grpo_verl_ext.algorithms.validation import check_rows, check_same_shape
from grpo_verl_ext.catalogue import Estimator, compute
from grpo_verl_ext.catalogue.gvpo import alpha_of
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.verl_plugin.batch.sessions import row_roles
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.wire import PASSED, Field


@torch.no_grad()
def estimate(
    estimator: Estimator,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: npt.ArrayLike | None = None,
    config: Mapping[str, Any] | None = None,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Return (advantages, returns) for (B, T) rewards and mask, and a prompt id for each row.

    With another ``gvpo_anchor`` than ``old`` the trainer, which has its log-probs, subtracts β (ℓ − mean ℓ).
    """
    ids = [] if index is None else np.asarray(index).tolist()
    if len(ids) != (count := token_level_rewards.shape[:1].numel()):
        raise ValueError(
            f"{estimator.name}: index has {len(ids)} prompt ids for {count} rows; "
            f"valid is one id per row, which verl takes from 'uid'. Pass index=<(B,) ids>"
        )
    section, device = config or {}, token_level_rewards.device
    options, group = Options.for_estimator(section, estimator.name), dense_group_ids(ids, device)
    check_rows(response_mask, group)
    rows = row_roles(estimator, ids, device)
    weighs = section.get("use_kl_in_reward") and (section.get("kl_ctrl") or {}).get("kl_coef", 1)
    if weighs and not torch.equal(rows[1], torch.arange(count, device=device)):
        raise SettingError(
            "algorithm.use_kl_in_reward",
            True,
            why="the agent loop returns several outputs for a session, and only the last one's reward "
            "counts: the KL of the others would be lost",
            valid="false",
            fix=Line("algorithm.use_kl_in_reward=false", "actor_rollout_ref.actor.use_kl_loss=true"),
        )
    weights = section.get("gdpo_reward_weights") or None
    found = _advantages(
        estimator, token_level_rewards, response_mask, group, rows, options=options, weights=weights
    )
    advantages = found.to(token_level_rewards.dtype)
    return advantages, advantages


def _advantages(
    estimator: Estimator,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    group: Tensor,
    rows: tuple[Tensor, Tensor],
    *,
    options: Options,
    weights: Sequence[float] | None,
) -> Tensor:
    budget = options.max_response_length if options.mask_truncated_completions else None
    learnt = adv.learnt_from(response_mask, budget)
    steps, rewards, lacks = PASSED.get().steps, PASSED.get().several_rewards, ""
    if estimator.needs_steps and steps is None:
        lacks = "step rewards to learn from; valid is a trainer mode and an agent loop"
    if estimator.several_rewards and rewards is None:
        lacks = "rewards but their sum to learn from; valid is a trainer mode"
    if lacks:
        raise ValueError(
            f"algorithm.adv_estimator={estimator.name} has no {lacks} of this package. Type: "
            f"+algo@_global_={estimator.name.removesuffix('_outcome')}"
        )
    if estimator.needs_steps and steps is not None:
        baseline = compute.BASELINES[str(options.scale_rewards)]
        return process_advantages(steps.rewards, steps.row, steps.end, learnt, group, baseline=baseline)
    if estimator.several_rewards and rewards is not None:
        check_rows(rewards, group)
    else:
        check_same_shape(token_level_rewards=token_level_rewards, response_mask=response_mask)
        rewards = adv.response_rewards(token_level_rewards)
    # One pass over rewards and one over the mask (int64 in verl); all other (B, T) but the result are flags.
    return compute.token_advantages(
        estimator,
        rewards,
        group,
        response_mask,
        learnt,
        rows=rows,
        scale_rewards=options.scale_rewards,
        weights=weights,
        dtype=token_level_rewards.dtype,
    )


def anchored_targets(rows: Any, prompts: Sequence[str], anchor: str, policy_loss: Any) -> Tensor:
    """Return GVPO's targets for an anchor, made of the estimator's R − R̄, for tokens laid end to end: (N,).

    ``anchor`` is the field of the rows with its log-probs, ragged, or (rows,) sums over the tokens of each.
    """
    mask, offsets = rows["response_mask"].values(), rows["response_mask"].offsets()
    lengths = ragged.row_lengths(mask, offsets)
    old_log_prob = rows[Field.OLD_LOG_PROBS].values()
    if rows[anchor].is_nested:
        log_ratio = ragged.row_log_ratio(old_log_prob, rows[anchor].values(), mask, offsets)
    else:
        log_ratio = ragged.row_sums(old_log_prob, mask, offsets) - rows[anchor]
    weighted = gvpo.length_weight(lengths, alpha_of(policy_loss)) * log_ratio
    rewards = ragged.row_values(rows["advantages"].values(), mask, offsets).double()
    group = dense_group_ids(prompts)
    targets = gvpo.anchored(rewards, weighted, group, lengths > 0, policy_loss.gvpo_beta)
    targets = targets.to(torch.promote_types(old_log_prob.dtype, torch.float32))
    return ragged.on_row_tokens(targets, mask, offsets)
