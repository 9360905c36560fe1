"""Losses for responses of another policy than the one that is trained, `algorithms.off_policy`."""

from grpo_verl_ext.algorithms import off_policy
from grpo_verl_ext.catalogue import requires
from grpo_verl_ext.catalogue.averages import AVERAGES
from grpo_verl_ext.catalogue.clipped import check_clip_range, clip_range
from grpo_verl_ext.catalogue.grpo import DR_GRPO, GRPO
from grpo_verl_ext.catalogue.record import Algorithm, TokenLoss, own_options
from grpo_verl_ext.utils.keys import BYPASS
from grpo_verl_ext.utils.options import NonNegative, PositiveFloat, Section, option

_POSITIVE, _LEAST = "a finite number > 0", "a finite number ≥ 0"

_TOPR = Algorithm(
    "topr",
    "arXiv 2503.14286",
    DR_GRPO.estimator,
    TokenLoss(
        "topr",
        off_policy.topr_loss,
        AVERAGES["seq-mean-token-sum"],
        keywords=lambda _: {},
        one_output=requires.ONE_OUTPUT,
        requires=requires.weighs_responses(
            "also weighs better responses, whereas TOPR tapers only worse ones (arXiv 2503.14286)"
        ),
    ),
    title="Le Roux et al., Tapered Off-Policy REINFORCE",
    fixes="off-policy updates that push bad responses down without limit: their weight is at most 1",
)


class _BpoOptions(Section):
    bpo_smoothing: PositiveFloat = option(0.01, "s of ω = (1 + s − π_old)/(1 + s − π)", _POSITIVE, "0.01")
    bpo_cap: PositiveFloat = option(5.0, "largest ω", _POSITIVE, "5.0")


_BPO = Algorithm(
    "bpo",
    "arXiv 2609.15987",
    GRPO.estimator,
    TokenLoss(
        "bpo",
        off_policy.bpo_loss,
        keywords=lambda config: clip_range(config) | own_options(_BpoOptions, config),
        options=_BpoOptions,
        settings=(check_clip_range,),
    ),
    "token-mean",
    title="Bellman Policy Optimization",
    fixes="a clip of π/π_old, which holds rare tokens and lets likely ones go: 1 − π is compared",
)


class _IcePopOptions(Section):
    icepop_alpha: NonNegative = option(0.5, "a token with a smaller π_old/μ is left out", _LEAST, "0.5")
    icepop_beta: PositiveFloat = option(5.0, "a token with a larger π_old/μ is left out", _POSITIVE, "5.0")


_TWICE = requires.Null(requires.WEIGHTS, "weighs by μ, as the loss does itself", refuse=True)

_ICEPOP = Algorithm(
    "icepop",
    "arXiv 2510.18855",
    GRPO.estimator,
    TokenLoss(
        "icepop",
        off_policy.icepop_surrogate,
        AVERAGES["seq-mean-token-mean"],
        keywords=lambda config: clip_range(config) | own_options(_IcePopOptions, config),
        options=_IcePopOptions,
        settings=(check_clip_range,),
        requires=(_TWICE, requires.Off(BYPASS, "makes π_old equal to μ: no token is left out", refuse=True)),
    ),
    title="Ling Team, Every Step Evolves",
    fixes="engines that disagree on what they sampled: tokens outside of two bounds are left out",
)


class _IpoOptions(Section):
    ipo_eps: PositiveFloat = option(0.1, "larger |π − μ| has no policy gradient", _POSITIVE, "0.1")
    ipo_kl_tau: NonNegative = option(0.001, "factor of (log π/μ)²", _LEAST, "0.001")


_IPO = Algorithm(
    "ipo",
    "prime-rl's loss ipo",
    DR_GRPO.estimator,
    TokenLoss(
        "ipo",
        off_policy.ipo_surrogate,
        keywords=lambda config: own_options(_IpoOptions, config),
        options=_IpoOptions,
        requires=(_TWICE,),
    ),
    "token-mean",
    fixes="a clip of π/μ, too strict for rare tokens: |π − μ| masks, a squared log-ratio holds",
)
