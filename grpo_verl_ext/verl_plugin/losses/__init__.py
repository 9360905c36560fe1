"""Policy losses with verl's signature; `LOSSES` names them for ``actor.policy_loss.loss_mode``.

verl's ``ppo_loss`` calls one per micro-batch, with (B, T) tensors and ``config`` the ActorConfig, whose
``global_batch_info`` holds the counts of the whole mini-batch. Each loss aggregates its tokens itself, so
value and gradient do not depend on the split into micro-batches and ranks (except bnpo, by definition).

The KL to the reference is reported by verl, because a registered loss gets no ``ref_log_prob`` and a
registered estimator no log-probs:

- With ``use_kl_loss``, ``ppo_loss`` reports ``actor/kl_loss`` by ``kl_loss_type``: ``kl`` is k1, ``mse`` k2,
  ``low_var_kl`` k3 (limited to 10); a ``+`` changes the gradient alone. It is exact for the mini-batch and
  reduced by ``loss_agg_mode``: nats per token for all losses but dr_grpo and gvpo. ``kl_loss_coef=0``
  measures it without changing the loss.
- With ``algorithm.use_kl_in_reward``, ``actor/reward_kl_penalty`` is ``algorithm.kl_penalty`` of the policy
  before the update, a mean over responses.
- The trainer modes of this package (``trainer.v1.trainer_mode=grpo_ext_sync`` etc.) report
  ``actor/ref_kl_k1``, ``…_k2`` and ``…_k3`` of the policy before the update.
"""

from grpo_verl_ext.verl_plugin.gvpo.loss import gvpo
from grpo_verl_ext.verl_plugin.losses import clipped
from grpo_verl_ext.verl_plugin.losses.normalization import PolicyLoss, Variant

VARIANTS: dict[str, Variant] = {
    **clipped.VARIANTS,
    "gvpo": Variant(gvpo, loss_agg_mode="seq-mean-token-sum", adv_estimator="gvpo", paired=True),
}
"""All variants by ``policy_loss.loss_mode``; checks, `invariance`, `anatomy`, pages and tests read it."""

LOSSES: dict[str, PolicyLoss] = {name: variant.loss for name, variant in VARIANTS.items()}
"""Losses to register with verl."""
