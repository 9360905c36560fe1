"""What a record says of the same rollout: −∂L/∂log π of each token, whole and in pure torch.

For a loss of this package `losses.NAME`, for one of verl's its function, called directly; the estimator, KL
and entropy by the functions of `algorithms`. Only verl's rollout correction, which is no part of a record, is
taken as verl computed it.
"""

import inspect

import torch
from torch import Tensor
from verl.trainer.ppo import core_algos

from grpo_verl_ext import losses
from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import gvpo, kl
from grpo_verl_ext.algorithms.aggregation import sequence_sums
from grpo_verl_ext.algorithms.process import process_advantages
from grpo_verl_ext.catalogue import Algorithm, Estimator, GroupLoss, VerlsLoss, compute
from grpo_verl_ext.catalogue.averages import MiniBatch, averaged
from grpo_verl_ext.catalogue.clipped import clip_range
from grpo_verl_ext.catalogue.gvpo import alpha_of
from grpo_verl_ext.proof.batch import Rollout
from grpo_verl_ext.proof.gradient import Training
from grpo_verl_ext.utils.keys import setting
from grpo_verl_ext.verl_plugin.config import Options

VERLS_LOSSES = {
    name: function
    for name, function in core_algos.POLICY_LOSS_REGISTRY.items()
    if function.__module__.startswith("verl.")
}
"""verl's own losses by name, as they were before a module of a user's could take one of these names."""
_KL_ESTIMATORS = {"kl": kl.k1, "k1": kl.k1, "mse": kl.k2, "k2": kl.k2, "low_var_kl": kl.k3, "k3": kl.k3}


def reference_weights(algorithm: Algorithm, training: Training, rollout: Rollout) -> Tensor:
    """−∂L/∂log π of each token of the responses, and then −∂L/∂ of each entropy: (2 N,).

    The training has the values of the record's preset, or the user's own; ``log_prob`` of the rollout is the
    policy at the update.
    """
    (rows, _), actor, loss = training.scored(rollout), training.actor, algorithm.loss
    mask, log_prob = rows.response_mask.bool(), rows.log_prob.clone().requires_grad_()
    entropy = torch.zeros_like(log_prob, requires_grad=True)
    actor.global_batch_info.update(dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=len(mask))
    known = {
        "log_prob": log_prob,
        "old_log_prob": rows.old_log_prob,
        "response_mask": mask,
        "advantages": _advantages(algorithm, training, rows, rollout.response_mask.bool()),
        "rollout_is_weights": rows.rollout_is_weights,
        "groups": rows.prompt,
        "rollout_log_prob": rows.rollout_log_prob,
        "ref_log_prob": rows.ref_log_prob,
        "entropy": rows.entropy,
        "clip_ratio_c": actor.clip_ratio_c,
        "loss_scale_factor": actor.loss_scale_factor,
        "off_policy_mask_threshold": actor.policy_loss.get("off_policy_mask_threshold", None),
        "loss_agg_mode": algorithm.loss_agg_mode,
        "config": actor,
    }
    options = loss.options.model_fields if loss.options else {}
    known |= clip_range(actor)
    known |= {name: actor.policy_loss.get(name, field.default) for name, field in options.items()}
    if isinstance(loss, VerlsLoss):
        function = VERLS_LOSSES[loss.name]
    else:
        function = getattr(losses, loss.name if algorithm.no_call else algorithm.name)
    taken = {name: known[name] for name in inspect.signature(function).parameters if name in known}
    value = torch.as_tensor(function(**taken)[0])
    beside = [(-actor.entropy_coeff, entropy)]
    if actor.use_kl_loss:
        kind = str(actor.kl_loss_type)
        beside.append((actor.kl_loss_coef, _kl(kind, log_prob, rows.ref_log_prob, mask)))
    counts = MiniBatch.from_config(actor)
    for coefficient, of_tokens in beside:
        value = value + coefficient * averaged(of_tokens, mask, algorithm.loss_agg_mode, counts)
    gradients = torch.stack(torch.autograd.grad(value, (log_prob, entropy)))
    return -gradients[:, rows.given].flatten()


@torch.no_grad()
def _advantages(algorithm: Algorithm, training: Training, rows: Rollout, written: Tensor) -> Tensor:
    section, estimator, scores = training.algorithm, algorithm.estimator, rows.scores
    mask = rows.response_mask.bool()
    if section.use_kl_in_reward:
        of_tokens = _kl(str(section.kl_penalty), rows.old_log_prob, rows.ref_log_prob, written)
        scores = scores - section.kl_ctrl.kl_coef * of_tokens
    if not isinstance(estimator, Estimator):
        gae = core_algos.compute_gae_advantage_return
        return torch.as_tensor(gae(scores, rows.values, mask.long(), section.gamma, section.lam)[0])
    options = Options.for_estimator(section, estimator.name)
    budget = options.max_response_length if options.mask_truncated_completions else None
    learnt, scale = adv.learnt_from(mask, budget), options.scale_rewards
    if estimator.needs_steps:
        ends, baseline = rows.steps, compute.BASELINES[str(scale)]
        return process_advantages(ends.rewards, ends.row, ends.end, learnt, rows.prompt, baseline=baseline)
    if estimator.several_rewards:
        names = setting(training.config, "algorithm.gdpo_reward_keys") or (1, 2)
        weights = setting(training.config, "algorithm.gdpo_reward_weights") or None
        rewards = rows.rewards[:, : len(names)]
    else:
        rewards, weights = scores.sum(dim=-1), None
    advantages = compute.token_advantages(
        estimator, rewards, rows.prompt, mask, learnt, scale_rewards=scale, weights=weights
    )
    if options.gvpo_anchor == "old" or not isinstance(algorithm.loss, GroupLoss):
        return advantages
    of_anchor = sequence_sums(rows.ref_log_prob, mask) if options.gvpo_anchor == "ref" else rows.of_anchor
    assert of_anchor is not None  # of a rollout that no training has scored
    policy_loss, member = training.actor.policy_loss, adv.has_tokens(mask)
    weight = gvpo.length_weight(mask.sum(-1), alpha_of(policy_loss))
    log_ratio = torch.where(member, weight * (sequence_sums(rows.old_log_prob, mask) - of_anchor), 0)
    rewards = adv.per_response(advantages, mask)
    return adv.on_tokens(gvpo.anchored(rewards, log_ratio, rows.prompt, member, policy_loss.gvpo_beta), mask)


def _kl(kind: str, log_prob: Tensor, ref_log_prob: Tensor, mask: Tensor) -> Tensor:
    """Return verl's estimator of this name of the KL to the reference, 0 under the mask: (B, T)."""
    estimate = _KL_ESTIMATORS.get(kind.removesuffix("+"))
    if estimate is None:  # `abs`, which is no KL
        return torch.where(mask, core_algos.kl_penalty(log_prob, ref_log_prob, kind), 0)
    value = estimate(log_prob, ref_log_prob, mask)
    return kl.with_k2_gradient(value, log_prob, ref_log_prob, mask) if kind.endswith("+") else value
