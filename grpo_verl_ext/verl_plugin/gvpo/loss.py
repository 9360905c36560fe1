"""GVPO as a loss registered with verl: a squared error per response, `algorithms.gvpo.squared_error`.

In a trainer mode of this package (``trainer.v1.trainer_mode=grpo_ext_sync`` etc.) the worker passes the loss
the size of each response's group and a function for its drift Δ̄; value and gradient are then exact at every
update. Without them the loss raises: verl's own trainers leave a group incomplete when a session fails, and
spread groups over updates.

**Low precision.** ``old_log_probs`` come from a separate forward pass with other micro-batches, hence other
rounding: in bf16 some hundredths of a nat per token, which add up over a response to a spurious Δ. Where the
worker knows that the policy has not moved, the current log-probs, detached, serve as the old ones: Δ is 0 in
value, and its gradient is unchanged. With anchor ``ref`` the targets keep the log-ratio of ``old_log_probs``
to the reference, both from passes without gradient, so that d_i = β Δ_i − Ã_i holds and its only error is the
rounding of that log-ratio.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import aggregation, gvpo_terms
from grpo_verl_ext.algorithms import gvpo as formulas
from grpo_verl_ext.catalogue.averages import MiniBatch, metrics_of
from grpo_verl_ext.catalogue.gvpo import ALL_TERMS, GvpoOptions
from grpo_verl_ext.catalogue.record import GroupLoss
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES
from grpo_verl_ext.verl_plugin.losses.custom import PolicyLoss
from grpo_verl_ext.verl_plugin.wire import GROUPS, UPDATE_SUMS, GroupRows

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig

_TERM_METRICS = (
    "actor/gvpo_loss",
    "actor/gvpo_reward_term",
    "actor/gvpo_var_term",
    "actor/gvpo_cov_term",
)
_DRIFT = "actor/gvpo_drift"
_COVARIANCES = tuple(f"actor/gvpo_{name}" for name in gvpo_terms.Moments._fields[:3])
"""The first moments are reported, the others added to `wire.UpdateSums.fit`."""
_LOG_PROB_GAP = "actor/gvpo_log_prob_gap"
SUMMED_METRICS = (*_TERM_METRICS, *_COVARIANCES, _DRIFT, _LOG_PROB_GAP)
"""Metrics that verl adds up: each micro-batch reports its share of the mini-batch's value."""


def group_loss_function(group_loss: GroupLoss) -> PolicyLoss:
    """Return GVPO's loss D/P Σ_i ½ d_i² / (k_i − 1) for verl: P = ``ppo_mini_batch_size`` prompts, D ranks.

    ``advantages`` are the targets Ã of the estimator of the same name. ``rollout_is_weights`` is not read:
    the minimiser is the same for every sampling distribution (Theorem 2). ``policy_loss.gvpo_terms`` replaces
    ½ d_i² / (k_i − 1) by a loss of the paper's ablation, `gvpo_terms.ABLATED_LOSSES`.

    The loss raises SettingError where the groups of the responses are not set (`wire.GROUPS`).
    """

    def loss_fn(
        *,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        config: "ActorConfig",
        **_: object,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        from grpo_verl_ext.verl_plugin.loss_config import options_of

        options = options_of(group_loss, config.policy_loss)
        return _loss_and_metrics(options, old_log_prob, log_prob, advantages, response_mask, config)

    loss_fn.__name__ = loss_fn.__qualname__ = group_loss.name
    loss_fn.__doc__ = group_loss_function.__doc__
    return loss_fn


def _loss_and_metrics(  # noqa: PLR0917  # a loss's arguments
    options: GvpoOptions,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    config: "ActorConfig",
) -> tuple[Tensor, dict[str, Tensor]]:
    beta = float(options.gvpo_beta)
    mini_batch, groups = MiniBatch.from_config(config), _known_groups()
    log_ratio = formulas.sequence_log_ratio(
        log_prob, log_prob.detach() if groups.old_is_current else old_log_prob, response_mask
    )
    weight = formulas.length_weight(response_mask.bool().sum(-1), float(options.gvpo_alpha)).to(log_ratio)
    log_ratio = weight * log_ratio
    targets = adv.per_response(advantages, response_mask).to(log_ratio.dtype)
    is_member = adv.has_tokens(response_mask)  # a rejected response is none
    size = torch.where(is_member, groups.size, 0)
    drift = groups.drift.to(log_ratio.dtype)
    residual = formulas.residual(log_ratio, targets, drift, beta)
    rewards = formulas.centred_rewards(targets, groups.old_deviation, groups.anchor_deviation, beta)
    moments = gvpo_terms.moments(residual, rewards, groups.anchor_deviation, size, beta)
    per_response = _loss_of(options.gvpo_terms, residual, size, moments, beta)
    parts = formulas.squared_error_parts(log_ratio.detach(), targets, drift, size, beta)
    summed = (per_response, *parts, *moments[:3], formulas.share_of_prompt(drift.abs(), size))
    loss, *others = (_mini_batch_mean(value, mini_batch) for value in summed)
    names = (*_TERM_METRICS, *_COVARIANCES, _DRIFT)
    metrics = {name: value.detach() for name, value in zip(names, (loss, *others), strict=True)}
    if groups.old_is_current:
        gap = formulas.sequence_log_ratio(log_prob.detach(), old_log_prob, response_mask).abs()
        metrics[_LOG_PROB_GAP] = aggregation.response_prompt_mean(
            gap, mini_batch.global_batch_size, group_size=1, dp_size=mini_batch.dp_size
        )
    of_tokens = {"actor/ppo_kl": old_log_prob - log_prob.detach(), "actor/entropy_per_token": -old_log_prob}
    weights = torch.where(is_member, formulas.weights(residual), 0)
    _add_to_update(groups.index, weights, moments, mini_batch)
    return loss, metrics | metrics_of(of_tokens, response_mask, config, mini_batch)


def _loss_of(terms: str, residual: Tensor, size: Tensor, moments: gvpo_terms.Moments, beta: float) -> Tensor:
    """Return what each response adds to the loss: (B,)."""
    if terms == ALL_TERMS:
        return formulas.squared_error(residual, size)
    return gvpo_terms.ABLATED_LOSSES[terms](moments, beta)


def _add_to_update(
    index: Tensor, weights: Tensor, moments: gvpo_terms.Moments, mini_batch: MiniBatch
) -> None:
    """Add this micro-batch's part to the sums of the update, where a worker has made them."""
    sums = UPDATE_SUMS.get()
    if sums is not None:
        sums.weights.index_add_(0, index, weights.to(sums.weights.dtype))
        sums.fit.add_(torch.stack([_mini_batch_mean(each.detach(), mini_batch) for each in moments[3:]]))


def _known_groups() -> GroupRows:
    groups = GROUPS.get()
    if groups is None:
        key = "trainer.v1.trainer_mode"
        raise SettingError(
            key,
            None,
            seen="policy_loss.loss_mode=gvpo was called without the groups of its responses, which verl's "
            "own trainers and workers do not tell a loss",
            valid=TRAINER_MODES,
            fix=f"python3 -m verl.trainer.main_ppo … trainer.use_v1=true {key}=grpo_ext_sync",
        )
    return groups


def _mini_batch_mean(per_response: Tensor, mini_batch: MiniBatch) -> Tensor:
    return aggregation.response_prompt_mean(
        per_response, mini_batch.global_batch_size, mini_batch.group_size, mini_batch.dp_size
    )
