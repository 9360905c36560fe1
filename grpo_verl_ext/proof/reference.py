"""What a record says of the same rollout: −∂L/∂log π of each token, whole and in pure torch.

For a loss of this package `losses.NAME`, for one of verl's its function, called directly; the estimator, KL
and entropy by the functions of `algorithms`. Only verl's rollout correction, which is no part of a record, is
taken as verl computed it.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo import core_algos

from grpo_verl_ext import losses
from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import gvpo, kl
from grpo_verl_ext.algorithms.aggregation import sequence_sums
from grpo_verl_ext.algorithms.process import process_advantages
from grpo_verl_ext.catalogue import Algorithm, Estimator, GroupLoss, VerlsLoss, evaluation
from grpo_verl_ext.catalogue.averages import MiniBatch, averaged
from grpo_verl_ext.catalogue.clipped import ClipRange
from grpo_verl_ext.catalogue.gvpo import alpha_of
from grpo_verl_ext.proof.gradient import Prepared, Training
from grpo_verl_ext.proof.rollout import Rollout
from grpo_verl_ext.utils.keys import SECTION, setting
from grpo_verl_ext.verl_plugin.config import Options

VERLS_LOSSES = {
    name: function
    for name, function in core_algos.POLICY_LOSS_REGISTRY.items()
    if function.__module__.startswith("verl.")
}
"""verl's own losses by name, as they were before a module of a user's could take one of these names."""
_KL_ESTIMATORS = {"kl": kl.k1, "k1": kl.k1, "mse": kl.k2, "k2": kl.k2, "low_var_kl": kl.k3, "k3": kl.k3}


def reference_weights(algorithm: Algorithm, prepared: Prepared, rollout: Rollout) -> Tensor:
    """−∂L/∂log π of each token of the responses, and then −∂L/∂ of each entropy: (2 N,).

    Args:
        algorithm: the record.
        prepared: with the values of the record's preset where they are not the user's.
        rollout: of which ``log_prob`` is the policy at the update.
    """
    return _Reference(algorithm, prepared, rollout).weights()


class _Reference:
    """A record on a rollout; (B, T) tensors, whose mask and weights are what a rollout correction leaves."""

    def __init__(self, algorithm: Algorithm, prepared: Prepared, rollout: Rollout) -> None:
        training = Training(prepared, rollout)
        self.algorithm, self.rollout = algorithm, rollout
        self.config, self.actor = prepared.config, prepared.actor
        rows, data = training.rows, training.scored.batch
        self.group, self.lengths = rows.prompt, [len(mask) for mask in rows.response_mask]
        self.given = pad_sequence(rows.response_mask, batch_first=True).bool()
        self.mask, self.rollout_is_weights = data["response_mask"].bool(), data.get("rollout_is_weights")
        self.old = pad_sequence(rows.old_log_prob, batch_first=True)
        self.ref = pad_sequence(rows.ref_log_prob, batch_first=True)
        self.log_prob = pad_sequence(rows.written(), batch_first=True).requires_grad_()
        counts = {"dp_size": 1, "batch_num_tokens": int(self.mask.sum()), "global_batch_size": len(self.mask)}
        self.actor.global_batch_info.update(counts)

    def weights(self) -> Tensor:
        actor, mode, counts = self.actor, self.algorithm.loss_agg_mode, MiniBatch.from_config(self.actor)
        entropy = torch.zeros_like(self.log_prob).requires_grad_()
        loss = self.policy_loss() - actor.entropy_coeff * averaged(entropy, self.mask, mode, counts)
        if actor.use_kl_loss:
            of_tokens = _kl(str(actor.kl_loss_type), self.log_prob, self.ref, self.mask)
            loss = loss + actor.kl_loss_coef * averaged(of_tokens, self.mask, mode, counts)
        gradients = torch.autograd.grad(loss, (self.log_prob, entropy))
        return -torch.cat([each[row, :end] for each in gradients for row, end in enumerate(self.lengths)])

    def policy_loss(self) -> Tensor:
        loss, actor = self.algorithm.loss, self.actor
        tokens, advantages = (self.log_prob, self.old, self.mask), self.advantages()
        if isinstance(loss, VerlsLoss):
            found: Tensor = VERLS_LOSSES[loss.name](
                self.old,
                self.log_prob,
                advantages,
                self.mask,
                loss_agg_mode=self.algorithm.loss_agg_mode,
                config=actor,
                rollout_is_weights=self.rollout_is_weights,
            )[0]
            return found
        function = getattr(losses, loss.name if self.algorithm.no_call else self.algorithm.name)
        clip, fields = ClipRange.from_config(actor), loss.options.model_fields if loss.options else {}
        known = {name: actor.policy_loss.get(name, field.default) for name, field in fields.items()} | {
            "advantages": self.anchored(advantages) if isinstance(loss, GroupLoss) else advantages,
            "groups": self.rollout.prompts,
            "clip_ratio_low": clip.low,
            "clip_ratio_high": clip.high,
            "clip_ratio_c": clip.c,
            "loss_scale_factor": actor.loss_scale_factor,
            "off_policy_mask_threshold": actor.policy_loss.get("off_policy_mask_threshold", None),
            "rollout_is_weights": self.rollout_is_weights,
        }
        taken = {name: known[name] for name in inspect.signature(function).parameters if name in known}
        return torch.as_tensor(function(*tokens, **taken)[0])

    @torch.no_grad()
    def advantages(self) -> Tensor:
        section, estimator, rewards = self.config.algorithm, self.algorithm.estimator, self.rollout.rewards
        scores = torch.zeros_like(self.old)
        scores[torch.arange(len(scores)), [end - 1 for end in self.lengths]] = rewards[:, 0]
        if section.use_kl_in_reward:
            kl_in_reward = _kl(str(section.kl_penalty), self.old, self.ref, self.given)
            scores = scores - section.kl_ctrl.kl_coef * kl_in_reward
        if not isinstance(estimator, Estimator):
            values = pad_sequence(self.rollout.values, batch_first=True)
            found: Tensor = core_algos.compute_gae_advantage_return(
                scores, values, self.mask.long(), section.gamma, section.lam
            )[0]
            return found
        options = Options.for_estimator(section, estimator.name)
        learnt, scale = adv.learnt_from(self.mask, options.budget_of_truncated), options.scale_rewards
        if estimator.needs_steps:
            steps, baseline = self.rollout.steps, evaluation.BASELINES[str(scale)]
            ends = steps.rewards, steps.row, steps.end
            return process_advantages(*ends, learnt, self.group, baseline=baseline)
        member = torch.ones_like(self.group, dtype=torch.bool)
        if estimator.several_rewards:
            names = setting(self.config, "algorithm.gdpo_reward_keys")
            rewards = rewards[:, : len(names) if names else 2]
            weights = setting(self.config, "algorithm.gdpo_reward_weights") or [1.0] * rewards.shape[1]
            each = evaluation.decoupled_advantages(estimator, rewards, weights, self.group, member)
        else:
            rewards = scores.sum(dim=-1)
            each = evaluation.response_advantages(estimator, rewards, self.group, member, learnt, scale)
        return evaluation.token_advantages(estimator, each, self.mask, learnt, self.group)

    def anchored(self, advantages: Tensor) -> Tensor:
        """Return GVPO's targets Ã for the configured anchor."""
        anchor, member = setting(self.config, f"{SECTION}.gvpo_anchor", "old"), adv.has_tokens(self.mask)
        if anchor == "old":
            return advantages
        of_anchor = self.rollout.teacher if anchor == "teacher" else sequence_sums(self.ref, self.mask)
        weight = gvpo.length_weight(self.mask.sum(-1), alpha_of(self.actor.policy_loss))
        log_ratio = torch.where(member, weight * (sequence_sums(self.old, self.mask) - of_anchor), 0)
        rewards, beta = adv.per_response(advantages, self.mask), self.actor.policy_loss.gvpo_beta
        return adv.on_tokens(gvpo.anchored(rewards, log_ratio, self.group, member, beta), self.mask)


def _kl(kind: str, log_prob: Tensor, ref_log_prob: Tensor, mask: Tensor) -> Tensor:
    """Return verl's estimator of this name of the KL to the reference, 0 under the mask: (B, T)."""
    estimate = _KL_ESTIMATORS.get(kind.removesuffix("+"))
    if estimate is None:  # `abs`, which is no KL
        found: Tensor = core_algos.kl_penalty(log_prob, ref_log_prob, kind)
        return torch.where(mask, found, 0)
    value = estimate(log_prob, ref_log_prob, mask)
    return kl.with_k2_gradient(value, log_prob, ref_log_prob, mask) if kind.endswith("+") else value
