"""KL-Cov: Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617.

The keys of ``actor.policy_loss`` are those of verl's loss ``kl_cov``, which ranks within each micro-batch.
"""

from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from grpo_verl_ext.algorithms import covariance
from grpo_verl_ext.algorithms.mini_batch import MiniBatchRows
from grpo_verl_ext.catalogue.averages import TOKEN_MEAN
from grpo_verl_ext.catalogue.clip_cov import Share
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import Algorithm, MiniBatchStatistic, TokenLoss
from grpo_verl_ext.catalogue.requires import ON_FSDP2, STATISTIC_ENGINES, Below, If, In, refused
from grpo_verl_ext.utils.errors import Line
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, setting
from grpo_verl_ext.utils.options import PositiveFloat, Section, option


class _KlCovOptions(Section):
    """KL-Cov's keys of ``actor.policy_loss``, with verl's defaults."""

    kl_cov_ratio: Share = option(
        0.0002, "share of the mini-batch's tokens that KL-Cov penalises", "a number in (0, 1]", "0.002"
    )
    ppo_kl_coef: PositiveFloat = option(0.1, "coefficient of KL-Cov's penalty", "a finite number > 0", "1.0")


def _largest(rows: MiniBatchRows, config: Any) -> Tensor:
    """Choose the tokens to penalise: `covariance.largest_covariances`."""
    return covariance.largest_covariances(rows, share=float(config.policy_loss.kl_cov_ratio))


def _kl_cov(  # noqa: PLR0917  # a loss's arguments
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    config: Any,
    largest: Tensor,
) -> Tensor:
    """Compute the surrogate with a penalty on the chosen tokens: `covariance.kl_cov_surrogate`."""
    coefficient = float(config.policy_loss.ppo_kl_coef)
    tokens = (log_prob, old_log_prob, advantages, response_mask, largest)
    return covariance.kl_cov_surrogate(*tokens, coefficient=coefficient)


def _begins_at_1(config: DictConfig) -> bool:
    """Whether a rollout is used once, and its first ratios are 1."""
    at_1 = setting(config, f"{ACTOR}.strategy") in STATISTIC_ENGINES and not setting(config, BYPASS)
    return setting(config, f"{ACTOR}.ppo_epochs") == 1 and at_1


_MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
_UPDATES = Below(
    _MINI_BATCH,
    "data.train_batch_size",
    "makes one update on a rollout, at which the penalty |log ρ| has no gradient",
    when=_begins_at_1,
    line=Line(f'{_MINI_BATCH}="${{grpo_ext.share:${{data.train_batch_size}},1,8}}"'),
)

_KL_COV = Algorithm(
    "kl_cov",
    "arXiv 2505.22617",
    GRPO_OUTCOME,
    TokenLoss(
        "kl_cov_mini_batch",
        _kl_cov,
        TOKEN_MEAN,
        doc=str(covariance.kl_cov_surrogate.__doc__),
        options=_KlCovOptions,
        needs=MiniBatchStatistic(_largest, metric="actor/frac_cov_penalised"),
        requires=(
            *refused(
                In(
                    f"{ACTOR}.strategy",
                    STATISTIC_ENGINES,
                    "computes old and new log-probs of the first update in two passes: the gradient of the "
                    "penalty |log ρ| is the sign of their rounding",
                    when=If(BYPASS, (False, None)),
                    line=Line(*ON_FSDP2),
                )
            ),
            _UPDATES,
        ),
    ),
    title="Cui et al., The Entropy Mechanism of RL for Reasoning Language Models",
    fixes="entropy that collapses: the tokens that lower it most are held by a penalty",
)
