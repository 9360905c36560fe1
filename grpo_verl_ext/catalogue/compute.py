"""Evaluate a record on tensors: the advantages of rewards, and the loss with its metrics.

The functions that verl calls and those of `grpo_verl_ext.losses` only gather the arguments. ``config`` is
verl's ActorConfig, or has the same attributes; its ``global_batch_info`` holds the counts of the whole
mini-batch, so value and gradient do not depend on the split into micro-batches and ranks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import aggregation, gvpo_terms, surrogate
from grpo_verl_ext.algorithms import gvpo as formulas
from grpo_verl_ext.algorithms.groups import group_sum
from grpo_verl_ext.algorithms.mini_batch import PartOfRows, evaluated
from grpo_verl_ext.algorithms.validation import check_matrix, check_same_shape
from grpo_verl_ext.catalogue.averages import MiniBatch, averaged, metrics_of
from grpo_verl_ext.catalogue.gvpo import GvpoOptions
from grpo_verl_ext.catalogue.presets import Preset
from grpo_verl_ext.catalogue.record import CLIPS, Algorithm, Estimator, Loss, TokenLoss

BASELINES: dict[str, adv.Baseline] = {
    "group": adv.group_scaled,
    "batch": adv.batch_scaled,
    "none": adv.centred,
}
"""``algorithm.grpo_ext.scale_rewards`` → its function."""

_LARGEST_REWARD = 1e15
"""Largest |reward|: sums of many squares still fit fp32."""


class Tokens(NamedTuple):
    """What every loss gets of its responses, (B, T) each; nats, and units of the advantages."""

    log_prob: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    response_mask: Tensor


# Advantages


def token_advantages(
    estimator: Estimator,
    rewards: Tensor,
    group: Tensor,
    response_mask: Tensor,
    learnt: Tensor,
    *,
    rows: tuple[Tensor, Tensor] | None = None,
    scale_rewards: str | None = None,
    weights: Sequence[float] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return each response's advantage on its tokens: (B,), or (B, M) for several rewards → (B, T).

    Args:
        learnt: the tokens that are learnt from; a weight that must sum to zero counts no row without any.
        rows: which are responses, and for each row the one whose advantage it gets; None: all, its own.
        scale_rewards: a name of `BASELINES`, for an estimator without a baseline of its own.
        weights: of M rewards; None: 1 each.
        dtype: of the result; None: that of the rewards.
    """
    everyone = torch.ones_like(group, dtype=torch.bool), torch.arange(len(group), device=group.device)
    member, last = rows or everyone
    if estimator.sums_to_zero:
        member = member & adv.has_tokens(learnt)
    fits = rewards.double().abs() <= _LARGEST_REWARD  # which is infinite in fp16
    bad = member & ~(fits.all(dim=-1) if estimator.several_rewards else fits)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"{estimator.name}: the reward of row {row} is {rewards[row].tolist()}, which would spoil its "
            f"whole group; valid are finite rewards of at most {_LARGEST_REWARD:g}. Correct the reward "
            f"function (reward.custom_reward_function.path)"
        )
    if estimator.several_rewards:
        each = [1.0] * rewards.shape[1] if weights is None else [*weights]
        of_response = adv.decoupled(rewards, rewards.new_tensor(each), group, member)
    else:
        of_response = (estimator.baseline or BASELINES[str(scale_rewards)])(rewards, group, member)
    of_response = of_response[last].to(dtype or rewards.dtype)
    if estimator.per_prompt_token:
        column = of_response.unsqueeze(-1)
        of_response = adv.per_prompt_token(column, response_mask, group).squeeze(-1)
    return adv.on_tokens(of_response, learnt)


# What a loss needs of a mini-batch whose rows are all here


def statistic(loss: Loss, tokens: Tokens, group: Tensor, config: Any, seed: int = 0) -> dict[str, Tensor]:
    """Return as ``statistic`` what the loss needs of the mini-batch: (B, T), 0 under the mask."""
    needs, mask = loss.needs, tokens.response_mask.bool()
    if needs is None:
        return {}
    result = torch.zeros_like(mask, dtype=torch.promote_types(tokens.log_prob.dtype, torch.float32))
    if len(mask) == 0:
        return {"statistic": result}
    size = group_sum(adv.has_tokens(mask).long(), group)
    number = torch.arange(len(mask), device=mask.device)
    part = PartOfRows(
        torch.stack([each.detach().double()[mask] for each in tokens[:3]]),
        torch.stack([mask.sum(dim=-1), number, group, size]),
    )
    values = evaluated(lambda rows: needs.compute(rows, config), [part], own=0, seed=seed)
    result[mask] = values.to(result)
    return {"statistic": result}


def group_rows(
    tokens: Tokens, group: Tensor, drift: Tensor, alpha: float = 0.0, anchor: Tensor | None = None
) -> formulas.GroupRows:
    """Return what GVPO's loss knows of whole prompts.

    Args:
        drift: Δ̄ on the tokens of each response, (B, T), from `statistic`.
        alpha: α of the weights |y|^(−α).
        anchor: log π′(y) of each response, (B,); None: π′ is the policy of ``old_log_prob``.
    """
    mask = tokens.response_mask.bool()
    member, weight = adv.has_tokens(mask), formulas.length_weight(mask.sum(-1), alpha)
    size = group_sum(member.long(), group)
    old, deviations = aggregation.sequence_sums(tokens.old_log_prob.double(), mask), []
    for log_prob in (old, old if anchor is None else anchor):
        weighted = weight * log_prob.double()
        sums = formulas.drift_sums(weighted, group, member, len(group))
        deviations.append(weighted - formulas.mean_drift(sums, group, member, size))
    return formulas.GroupRows(group, size, adv.per_response(drift, mask), deviations[0], deviations[1])


# Losses of tokens


def token_loss(
    loss: TokenLoss,
    tokens: Tokens,
    config: Any,
    inputs: Mapping[str, Tensor],
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a loss of tokens, averaged over the mini-batch, and its metrics: (B, T) → ().

    Args:
        inputs: what the loss asks for by name, and more, (B, T) each.
        rollout_is_weights: weights of tokens, (B, T), constants.
    """
    mini_batch, mask = MiniBatch.from_config(config), tokens.response_mask
    own, keywords = ((config,), {}) if loss.keywords is None else ((), loss.keywords(config))
    weighing = {} if rollout_is_weights is None else {"rollout_is_weights": rollout_is_weights.detach()}
    check_same_shape(**tokens._asdict(), **weighing, **{name: inputs[name] for name in loss.inputs})
    given = (torch.where(mask.bool(), each, 0) for each in tokens[:3])  # also of a NaN that is no token
    asked = {name: torch.where(mask.bool(), inputs[name].detach(), 0) for name in loss.inputs}
    of_tokens = loss.per_token(*given, mask, *own, **asked, **keywords)
    if of_tokens.shape != mask.shape:
        check_matrix(response_mask=mask)
        raise ValueError(
            f"the loss {loss.name} returned shape {tuple(of_tokens.shape)}; valid is one number per "
            f"token, {tuple(mask.shape)}, not yet averaged. Type: return -advantages * log_prob"
        )
    threshold = config.policy_loss.get("off_policy_mask_threshold")
    kept = None if threshold is None else surrogate.off_policy_mask(*tokens, threshold=float(threshold))
    for weights in (kept, *weighing.values()):
        if weights is not None:
            of_tokens = of_tokens * torch.where(mask.bool(), weights, 0)
    log_ratio = surrogate.token_log_ratio(tokens.log_prob.detach(), tokens.old_log_prob, mask)
    if loss.events is None:
        values = {"actor/frac_zero_advantage": torch.eq(tokens.advantages, 0)}
    else:
        values = _clipped(loss.events(log_ratio, tokens.advantages, mask, *own, **keywords))
    values |= {"actor/ppo_kl": -log_ratio, "actor/entropy_per_token": -tokens.old_log_prob}
    if kept is not None:
        values["actor/frac_off_policy_masked"] = ~kept
    if loss.needs is not None and loss.needs.metric:
        values[loss.needs.metric] = inputs["statistic"]
    metrics = metrics_of(values, mask, config, mini_batch)
    if loss.average is None:
        return averaged(of_tokens, mask, config.loss_agg_mode, mini_batch), metrics
    return loss.average.reduce(of_tokens, mask, mini_batch), metrics


def _clipped(events: surrogate.TokenEvents) -> dict[str, Tensor]:
    return {
        "actor/pg_clipfrac": events.clipped_low | events.clipped_high,
        "actor/pg_clipfrac_lower": events.dual_clipped,
        "actor/clip_ratio_low": events.clipped_low,
        "actor/clip_ratio_high": events.clipped_high,
        "actor/frac_zero_advantage": events.zero_advantage,
    }


# Losses of groups

_TERM_METRICS = ("actor/gvpo_loss", "actor/gvpo_reward_term", "actor/gvpo_var_term", "actor/gvpo_cov_term")
_DRIFT = "actor/gvpo_drift"
_COVARIANCES = tuple(f"actor/gvpo_{name}" for name in gvpo_terms.Moments._fields[:3])
"""The first moments are reported; a worker adds the others up (`_GroupLossResult.moments`)."""
_LOG_PROB_GAP = "actor/gvpo_log_prob_gap"
SUMMED_METRICS = (*_TERM_METRICS, *_COVARIANCES, _DRIFT, _LOG_PROB_GAP)
"""Metrics that verl adds up: each micro-batch reports its share of the mini-batch's value."""


class _GroupLossResult(NamedTuple):
    """GVPO's loss, (), its metrics, and what a worker adds up over micro-batches.

    Attributes:
        weights: of the responses' log-likelihoods, (B,).
        moments: all of them, (B,) each.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    weights: Tensor
    moments: gvpo_terms.Moments


def group_loss(
    options: GvpoOptions, tokens: Tokens, groups: formulas.GroupRows, config: Any
) -> _GroupLossResult:
    """Return GVPO's loss D/P Σ_i ½ d_i² / (k_i − 1), or one of its paper's ablation: (B, T) → ()."""
    log_prob, old_log_prob, advantages, response_mask = tokens
    beta, mini_batch = float(options.gvpo_beta), MiniBatch.from_config(config)
    log_ratio = formulas.sequence_log_ratio(
        log_prob, log_prob.detach() if groups.old_is_current else old_log_prob, response_mask
    )
    weight = formulas.length_weight(tokens.response_mask.bool().sum(-1), float(options.gvpo_alpha))
    log_ratio = weight.to(log_ratio) * log_ratio
    targets = adv.per_response(advantages, response_mask).to(log_ratio.dtype)
    is_member = adv.has_tokens(response_mask)  # a rejected response is none
    size = torch.where(is_member, groups.size, 0)
    drift = groups.drift.to(log_ratio.dtype)
    residual = formulas.residual(log_ratio, targets, drift, beta)
    # R − R̄ = Ã + β (ℓ − ℓ̄), of which `formulas.anchored` is the inverse.
    rewards = targets + beta * (groups.old_deviation - groups.anchor_deviation)
    moments = gvpo_terms.Moments.of(residual, rewards, groups.anchor_deviation, size, beta)
    ablated = gvpo_terms.ABLATED_LOSSES.get(options.gvpo_terms)
    per_response = ablated(moments, beta) if ablated else formulas.squared_error(residual, size)
    parts = formulas.squared_error_parts(log_ratio.detach(), targets, drift, size, beta)
    summed = (per_response, *parts, *moments[:3], drift.abs() / size.clamp(min=1))
    loss, *others = (mini_batch.mean(value) for value in summed)
    names = (*_TERM_METRICS, *_COVARIANCES, _DRIFT)
    metrics = {name: value.detach() for name, value in zip(names, (loss, *others), strict=True)}
    if groups.old_is_current:
        gap = formulas.sequence_log_ratio(log_prob.detach(), old_log_prob, response_mask).abs()
        metrics[_LOG_PROB_GAP] = aggregation.response_prompt_mean(
            gap, mini_batch.global_batch_size, group_size=1, dp_size=mini_batch.dp_size
        )
    of_tokens = {"actor/ppo_kl": old_log_prob - log_prob.detach(), "actor/entropy_per_token": -old_log_prob}
    metrics |= metrics_of(of_tokens, response_mask, config, mini_batch)
    return _GroupLossResult(loss, metrics, torch.where(is_member, -residual.detach(), 0), moments)


# A record by itself


def config_of(
    algorithm: Algorithm, preset: Preset, given: Mapping[str, Any], counts: tuple[int, int, int]
) -> DictConfig:
    """Return arguments, by name, as the keys of verl's ActorConfig that losses and averages read.

    ``counts`` are tokens, responses and prompts of the mini-batch.
    """
    tokens, responses, prompts = counts
    loss, numbers = algorithm.loss, preset.numbers
    own = ("off_policy_mask_threshold", *(loss.options.model_fields if loss.options else ()))
    config: DictConfig = OmegaConf.create(
        dict.fromkeys(CLIPS)
        # what verl takes where a side has no value
        | {"clip_ratio": numbers.get("clip_ratio", 0.2 if {*CLIPS[1:3]} <= given.keys() else None)}
        | {name: given[name] for name in (*numbers, "seed") if name in given}
        | {
            "loss_agg_mode": algorithm.loss_agg_mode,
            "loss_scale_factor": given.get("loss_scale_factor"),
            "use_dynamic_bsz": False,
            "rollout_n": responses / prompts if prompts else 1,
            "global_batch_info": {
                "dp_size": 1,
                "batch_num_tokens": tokens,
                "global_batch_size": responses or 1,
            },
            "policy_loss": {"loss_mode": loss.name} | {name: given.get(name) for name in own},
        }
    )
    return config
