"""GMPO: Zhao et al., Geometric-Mean Policy Optimization, arXiv 2507.20673.

``clip_ratio_low`` and ``clip_ratio_high`` are a range of log ρ, in nats, as in verl's ``geo_mean``.
"""

from grpo_verl_ext.algorithms import surrogate
from grpo_verl_ext.catalogue.averages import AVERAGES
from grpo_verl_ext.catalogue.clipped import check_clip_range, clip_range
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.catalogue.record import Algorithm, TokenLoss
from grpo_verl_ext.catalogue.requires import ONE_OUTPUT, WHOLE_RESPONSES

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
