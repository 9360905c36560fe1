"""GMPO: Zhao et al., Geometric-Mean Policy Optimization, arXiv 2507.20673.

``clip_ratio_low`` and ``clip_ratio_high`` are a range of log ρ, in nats, as in verl's ``geo_mean``.
"""

from typing import Any

from torch import Tensor

from grpo_verl_ext.algorithms import surrogate
from grpo_verl_ext.catalogue.averages import SEQUENCE_MEAN_TOKEN_MEAN
from grpo_verl_ext.catalogue.clipped import ClipRange, check_clip_range
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import Algorithm, TokenLoss
from grpo_verl_ext.catalogue.weights import ONE_OUTPUT, WHOLE_RESPONSES


def _geometric_mean(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor, config: Any
) -> Tensor:
    """Compute GMPO's surrogate with the actor's clip range: `surrogate.geometric_mean_surrogate`."""
    clip = ClipRange.from_config(config)
    tokens = (log_prob, old_log_prob, advantages, response_mask)
    return surrogate.geometric_mean_surrogate(*tokens, log_clip_low=clip.low, log_clip_high=clip.high)


def _events(
    log_ratio: Tensor, advantages: Tensor, response_mask: Tensor, config: Any
) -> surrogate.TokenEvents:
    """Return the tokens that the clip cut off: `surrogate.geometric_mean_events`."""
    clip = ClipRange.from_config(config)
    return surrogate.geometric_mean_events(
        log_ratio, advantages, response_mask, log_clip_low=clip.low, log_clip_high=clip.high
    )


_GMPO = Algorithm(
    "gmpo",
    "arXiv 2507.20673",
    GRPO_OUTCOME,
    TokenLoss(
        "gmpo",
        _geometric_mean,
        SEQUENCE_MEAN_TOKEN_MEAN,
        _events,
        doc=str(surrogate.geometric_mean_surrogate.__doc__),
        one_output=ONE_OUTPUT,
        settings=(check_clip_range,),
        requires=(WHOLE_RESPONSES,),
    ),
    title="Zhao et al., Geometric-Mean Policy Optimization",
    fixes="single tokens with extreme ratios: the geometric mean over a response",
)
