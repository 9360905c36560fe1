"""Policy losses with verl's signature; `LOSSES` names them for ``actor.policy_loss.loss_mode``.

verl calls one per micro-batch from its ``ppo_loss``, with (B, T) tensors and ``config`` the ActorConfig,
whose ``global_batch_info`` holds the counts of the whole mini-batch. Each loss owns its aggregation, so its
value and gradient do not depend on the split into micro-batches and ranks (bnpo, by definition, does).

The KL to the reference is verl's to report. A registered loss gets no ``ref_log_prob`` and a registered
estimator no log-probs; ``ppo_loss`` reads them afterwards and computes one estimator, ``actor/kl_loss``, by
``kl_loss_type``: ``kl`` is k1, ``mse`` k2, ``low_var_kl`` k3 (limited to 10), and a ``+`` changes
the gradient alone. It needs ``use_kl_loss``, is exact for the mini-batch, and is reduced by
``loss_agg_mode``, so it is nats per token for all but dr_grpo and gvpo; ``kl_loss_coef=0`` measures it and
leaves the loss alone. With ``algorithm.use_kl_in_reward``, ``actor/reward_kl_penalty`` is
``algorithm.kl_penalty`` of the policy before the update, a mean over responses. The trainer modes of this
package (``trainer.v1.trainer_mode=grpo_ext_sync``) report all three estimators of the policy before the
update, ``actor/ref_kl_k1``, ``…_k2`` and ``…_k3``.
"""

from grpo_verl_ext.verl_plugin.losses import clipped
from grpo_verl_ext.verl_plugin.losses.gvpo import gvpo
from grpo_verl_ext.verl_plugin.losses.normalization import PolicyLoss, Variant

VARIANTS: dict[str, Variant] = {
    **clipped.VARIANTS,
    "gvpo": Variant(gvpo, loss_agg_mode="seq-mean-token-sum", adv_estimator="gvpo", paired=True),
}
"""The one table of variants, by ``policy_loss.loss_mode``: the checks of a configuration, `invariance`,
`anatomy`, the pages and the tests read it."""

LOSSES: dict[str, PolicyLoss] = {name: variant.loss for name, variant in VARIANTS.items()}
"""What is registered with verl."""
