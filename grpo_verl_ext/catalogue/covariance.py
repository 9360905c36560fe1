"""Clip-Cov, KL-Cov: Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617.

The keys of ``actor.policy_loss`` are those of verl's losses ``clip_cov``, which draws in each micro-batch,
and ``kl_cov``, which ranks within each.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from grpo_verl_ext.algorithms import covariance
from grpo_verl_ext.algorithms.surrogate import token_events
from grpo_verl_ext.catalogue.averages import AVERAGES
from grpo_verl_ext.catalogue.clipped import check_clip_range, clip_range
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.catalogue.record import Algorithm, MiniBatchStatistic, TokenLoss
from grpo_verl_ext.catalogue.requires import ON_FSDP2, STATISTIC_ENGINES, If, In, Where
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, POLICY_LOSS, setting
from grpo_verl_ext.utils.options import Number, PositiveFloat, Section, option

_Share = Annotated[float, Field(gt=0, le=1)]
_SHARE, _BOUND = "a number in (0, 1]", "a finite number, in nats times units of the advantages"
_TITLE = "Cui et al., The Entropy Mechanism of RL for Reasoning Language Models"


class _ClipCovOptions(Section):
    clip_cov_ratio: _Share = option(
        0.0002, "share of the mini-batch's tokens that Clip-Cov draws", _SHARE, "0.0002"
    )
    clip_cov_lb: Number = option(1.0, "Clip-Cov draws among tokens with a larger covariance", _BOUND, "1.0")
    clip_cov_ub: Number = option(5.0, "Clip-Cov draws among tokens with a smaller covariance", _BOUND, "5.0")


def _check_bounds(actor: Mapping[str, Any]) -> None:
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
    GRPO.estimator,
    TokenLoss(
        "clip_cov_mini_batch",
        covariance.clip_cov_surrogate,
        AVERAGES["token-mean"],
        token_events,
        keywords=clip_range,
        options=_ClipCovOptions,
        needs=MiniBatchStatistic(
            lambda rows, config: covariance.drawn_covariances(
                rows,
                share=float(config.policy_loss.clip_cov_ratio),
                low=float(config.policy_loss.clip_cov_lb),
                high=float(config.policy_loss.clip_cov_ub),
                **clip_range(config),
            ),
            metric="actor/frac_cov_clipped",
        ),
        settings=(check_clip_range, _check_bounds),
    ),
    title=_TITLE,
    fixes="entropy that collapses: some of the tokens that lower it get no gradient",
)


class _KlCovOptions(Section):
    kl_cov_ratio: _Share = option(
        0.0002, "share of the mini-batch's tokens that KL-Cov penalises", _SHARE, "0.002"
    )
    ppo_kl_coef: PositiveFloat = option(0.1, "coefficient of KL-Cov's penalty", "a finite number > 0", "1.0")


_MINI_BATCH, _BATCH = f"{ACTOR}.ppo_mini_batch_size", "data.train_batch_size"

_KL_COV = Algorithm(
    "kl_cov",
    "arXiv 2505.22617",
    GRPO.estimator,
    TokenLoss(
        "kl_cov_mini_batch",
        covariance.kl_cov_surrogate,
        AVERAGES["token-mean"],
        keywords=lambda config: {"coefficient": float(config.policy_loss.ppo_kl_coef)},
        options=_KlCovOptions,
        needs=MiniBatchStatistic(
            lambda rows, config: covariance.largest_covariances(
                rows, share=float(config.policy_loss.kl_cov_ratio)
            ),
            metric="actor/frac_cov_penalised",
        ),
        requires=(
            In(
                f"{ACTOR}.strategy",
                STATISTIC_ENGINES,
                "computes old and new log-probs of the first update in two passes: the gradient of the "
                "penalty |log ρ| is the sign of their rounding",
                refuse=True,
                when=If(BYPASS, (False, None)),
                line=Line(*ON_FSDP2),
            ),
            In(
                _MINI_BATCH,
                (_BATCH,),
                "makes one update on a rollout, at which the penalty |log ρ| has no gradient",
                when=Where(
                    "a rollout is used once, and its first ratios are 1",
                    lambda config: (
                        setting(config, f"{ACTOR}.ppo_epochs") == 1
                        and setting(config, f"{ACTOR}.strategy") in STATISTIC_ENGINES
                        and not setting(config, BYPASS)
                    ),
                ),
                line=Line(f'{_MINI_BATCH}="${{grpo_ext.share:${{{_BATCH}}},1,8}}"'),
                test=lambda value, config: isinstance(value, int) and value < setting(config, _BATCH, 0),
                words=f"below {_BATCH}",
            ),
        ),
    ),
    title=_TITLE,
    fixes="entropy that collapses: the tokens that lower it most are held by a penalty",
)
