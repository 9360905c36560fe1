"""GVPO as a registered loss: every response has a loss of its own, `algorithms.gvpo.squared_error`.

A trainer mode that keeps groups (``trainer.v1.trainer_mode=group_sync``) has its worker supply the drift of
each response's group and its size, and value and gradient are exact at every update. Without them the loss
refuses: verl's own trainers leave groups incomplete, where a session fails, and spread them over updates.
"""

from typing import TYPE_CHECKING

from torch import Tensor

from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import aggregation
from grpo_verl_ext.algorithms import gvpo as formulas
from grpo_verl_ext.verl_plugin.findings import SettingError
from grpo_verl_ext.verl_plugin.keys import GROUP_MODES
from grpo_verl_ext.verl_plugin.losses.group_rows import GROUPS, GroupRows
from grpo_verl_ext.verl_plugin.losses.mini_batch import MiniBatch, metrics_of
from grpo_verl_ext.verl_plugin.settings import check_loss

if TYPE_CHECKING:
    from verl.workers.config import ActorConfig

LOSS_AGG_MODE = "seq-mean-token-sum"

SUMMED_METRICS = (
    "actor/gvpo_loss",
    "actor/gvpo_reward_term",
    "actor/gvpo_var_term",
    "actor/gvpo_cov_term",
)
"""Each micro-batch reports its share of the mini-batch's value; the worker has verl add them up."""


def gvpo(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    config: "ActorConfig",
    **_: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """GVPO: D/P Σ_i ½ d_i² / (k_i − 1), with P = ``ppo_mini_batch_size`` prompts and D ranks.

    ``advantages`` are the targets Ã of the estimator of the same name. ``rollout_is_weights`` is not read:
    the minimiser is the same for every sampling distribution (Theorem 2).

    Raises:
        SettingError: nobody said which group each response belongs to.
    """
    check_loss("gvpo", LOSS_AGG_MODE, config)
    beta = float(config.policy_loss["gvpo_beta"])
    mini_batch, groups = MiniBatch.from_config(config), _known_groups()
    log_ratio = formulas.sequence_log_ratio(log_prob, old_log_prob, response_mask)
    targets = adv.of_response(advantages, response_mask).to(log_ratio.dtype)
    residual = formulas.residual(log_ratio, targets, groups.drift, beta)
    loss = _mini_batch_mean(formulas.squared_error(residual, groups.size), mini_batch)
    weights = formulas.weights(residual).to(groups.weight_sums.dtype)
    groups.weight_sums.index_add_(0, groups.index, weights)

    parts = formulas.squared_error_parts(log_ratio.detach(), targets, groups.drift, groups.size, beta)
    values = (loss.detach(), *(_mini_batch_mean(part, mini_batch) for part in parts))
    metrics = dict(zip(SUMMED_METRICS, values, strict=True))
    of_tokens = {"actor/ppo_kl": old_log_prob - log_prob.detach()}
    return loss, metrics | metrics_of(of_tokens, response_mask, config, mini_batch)


def _known_groups() -> GroupRows:
    groups = GROUPS.current()
    if groups is None:
        key = "trainer.v1.trainer_mode"
        raise SettingError(
            f"policy_loss.loss_mode=gvpo was called without the groups of its responses, which verl's own "
            f"trainers and workers do not tell a loss; valid are {', '.join(GROUP_MODES)}. "
            f"Type: python3 -m verl.trainer.main_ppo … trainer.use_v1=true {key}=group_sync",
            key=key,
        )
    return groups


def _mini_batch_mean(per_response: Tensor, mini_batch: MiniBatch) -> Tensor:
    return aggregation.response_prompt_mean(
        per_response, mini_batch.global_batch_size, mini_batch.group_size, mini_batch.dp_size
    )
