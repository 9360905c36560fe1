"""Clip-Cov: Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617.

The keys of ``actor.policy_loss`` are those of verl's loss ``clip_cov``, which draws in each micro-batch.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from grpo_verl_ext.algorithms import covariance
from grpo_verl_ext.algorithms.mini_batch import MiniBatchRows
from grpo_verl_ext.catalogue.averages import TOKEN_MEAN
from grpo_verl_ext.catalogue.clipped import ClipRange, check_clip_range, clip_events
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import Algorithm, MiniBatchStatistic, TokenLoss
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import POLICY_LOSS
from grpo_verl_ext.utils.options import Number, Section, option

Share = Annotated[float, Field(gt=0, le=1)]
_BOUND = "a finite number, in nats times units of the advantages"


class _ClipCovOptions(Section):
    """Clip-Cov's keys of ``actor.policy_loss``, with verl's defaults, which are the authors'."""

    clip_cov_ratio: Share = option(
        0.0002, "share of the mini-batch's tokens that Clip-Cov draws", "a number in (0, 1]", "0.0002"
    )
    clip_cov_lb: Number = option(1.0, "Clip-Cov draws among tokens with a larger covariance", _BOUND, "1.0")
    clip_cov_ub: Number = option(5.0, "Clip-Cov draws among tokens with a smaller covariance", _BOUND, "5.0")


def _drawn(rows: MiniBatchRows, config: Any) -> Tensor:
    """Draw the tokens that get no gradient: `covariance.drawn_covariances`."""
    options, clip = config.policy_loss, ClipRange.from_config(config)
    return covariance.drawn_covariances(
        rows,
        share=float(options.clip_cov_ratio),
        low=float(options.clip_cov_lb),
        high=float(options.clip_cov_ub),
        clip_ratio_low=clip.low,
        clip_ratio_high=clip.high,
    )


def _clip_cov(  # noqa: PLR0917  # a loss's arguments
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    config: Any,
    drawn: Tensor,
) -> Tensor:
    """Compute the clipped surrogate without the drawn tokens: `covariance.clip_cov_surrogate`."""
    clip = ClipRange.from_config(config)
    tokens = (log_prob, old_log_prob, advantages, response_mask, drawn)
    return covariance.clip_cov_surrogate(*tokens, clip_ratio_low=clip.low, clip_ratio_high=clip.high)


def _check_bounds(loss_mode: str, actor: Mapping[str, Any]) -> None:  # noqa: ARG001  # an `ActorCheck`
    """Refuse bounds between which no covariance lies."""
    low, high = actor["policy_loss"]["clip_cov_lb"], actor["policy_loss"]["clip_cov_ub"]
    if not low < high:
        raise SettingError(
            f"{POLICY_LOSS}.clip_cov_lb",
            low,
            why=f"{POLICY_LOSS}.clip_cov_ub is {high}, and no covariance lies between: no token is drawn",
            valid="a number below it",
            fix=Line(f"{POLICY_LOSS}.clip_cov_lb=1.0", f"{POLICY_LOSS}.clip_cov_ub=5.0"),
        )


_CLIP_COV = Algorithm(
    "clip_cov",
    "arXiv 2505.22617",
    GRPO_OUTCOME,
    TokenLoss(
        "clip_cov_mini_batch",
        _clip_cov,
        TOKEN_MEAN,
        clip_events,
        doc=str(covariance.clip_cov_surrogate.__doc__),
        options=_ClipCovOptions,
        needs=MiniBatchStatistic(_drawn, metric="actor/frac_cov_clipped"),
        settings=(check_clip_range, _check_bounds),
    ),
    title="Cui et al., The Entropy Mechanism of RL for Reasoning Language Models",
    fixes="entropy that collapses: some of the tokens that lower it get no gradient",
)
