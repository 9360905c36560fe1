"""Losses of tokens with verl's signature, made from records of the catalogue.

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

# verl's registries first: their import registers the catalogue, which imports this package's modules whole.
import verl.trainer.ppo.core_algos  # noqa: F401
