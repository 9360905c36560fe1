"""Losses that weigh a response by the ratio of all its tokens: GMPO, VESPO.

For GMPO ``clip_ratio_low`` and ``clip_ratio_high`` are a range of log ρ, in nats, as in verl's ``geo_mean``.
"""

from grpo_verl_ext.algorithms import surrogate
from grpo_verl_ext.algorithms.vespo import vespo_loss
from grpo_verl_ext.catalogue.averages import AVERAGES
from grpo_verl_ext.catalogue.clipped import check_clip_range, clip_range
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.catalogue.record import Algorithm, TokenLoss, own_options
from grpo_verl_ext.catalogue.requires import ONE_OUTPUT, WHOLE_RESPONSES, weighs_responses
from grpo_verl_ext.utils.options import NonNegative, PositiveFloat, Section, option

_GMPO = Algorithm(
    "gmpo",
    "arXiv 2507.20673",
    GRPO.estimator,
    TokenLoss(
        "gmpo",
        surrogate.geometric_mean_surrogate,
        AVERAGES["seq-mean-token-mean"],
        surrogate.geometric_mean_events,
        keywords=lambda config: dict(
            zip(("log_clip_low", "log_clip_high"), clip_range(config).values(), strict=True)
        ),
        one_output=ONE_OUTPUT,
        settings=(check_clip_range,),
        requires=(WHOLE_RESPONSES,),
    ),
    title="Zhao et al., Geometric-Mean Policy Optimization",
    fixes="single tokens with extreme ratios: the geometric mean over a response",
)


class _VespoOptions(Section):
    vespo_k_pos: NonNegative = option(2.0, "power of W where A ≥ 0", "a finite number ≥ 0", "2.0")
    vespo_lambda_pos: PositiveFloat = option(3.0, "decay in W where A ≥ 0", "a finite number > 0", "3.0")
    vespo_k_neg: NonNegative = option(3.0, "power of W where A < 0", "a finite number ≥ 0", "3.0")
    vespo_lambda_neg: PositiveFloat = option(2.0, "decay in W where A < 0", "a finite number > 0", "2.0")


_VESPO = Algorithm(
    "vespo",
    "arXiv 2602.10693",
    GRPO.estimator,
    TokenLoss(
        "vespo",
        vespo_loss,
        AVERAGES["token-mean"],
        keywords=lambda config: own_options(_VespoOptions, config),
        options=_VespoOptions,
        one_output=ONE_OUTPUT,
        requires=weighs_responses(
            "counts π/π_rollout twice, which is in VESPO's kernel (arXiv 2602.10693, §3.4)"
        ),
    ),
    title="Shen et al., Variational Sequence-Level Soft Policy Optimization",
    fixes="weights of whole responses that explode in old rollouts: a smooth kernel bounds them",
)
