"""DPPO by total variation: Qi et al., Rethinking the Trust Region in LLM RL, arXiv 2602.04879."""

from collections.abc import Iterator
from functools import partial

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH
from grpo_verl_ext.catalogue.clipped import check_clip_range, clip_ratio
from grpo_verl_ext.catalogue.dr_grpo import DR_GRPO
from grpo_verl_ext.catalogue.record import Algorithm, VerlsLoss
from grpo_verl_ext.catalogue.verls import needs_clip_ratio_c
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import ACTOR, SCALE_FACTOR
from grpo_verl_ext.utils.options import is_positive

_LARGE = 100.0
"""A truncation of ρ from here on cuts off next to nothing; verl's example has 10000."""
_PPOS_RANGE = 0.2
"""verl's default for a clip of ρ; as a divergence it is four times the authors' for KL."""

_needs_truncation = needs_clip_ratio_c(
    "truncates ρ there, and cannot without a number", "a large number", "10000.0"
)


def _advise(papers: str, config: DictConfig) -> Iterator[Problem]:
    """Warn of verl's defaults, which are made for a clip of ρ and are other numbers here."""
    actor = config.actor_rollout_ref.actor
    if actor.clip_ratio_c is not None and actor.clip_ratio_c < _LARGE:
        key = f"{ACTOR}.clip_ratio_c"
        yield Problem(
            key,
            actor.clip_ratio_c,
            why="DPPO truncates ρ there, and small values bias the gradient against rare tokens (arXiv "
            "2602.04879, §5.4); verl's default 3.0 is that of a dual clip",
            valid="a large number",
            fix=Line(f"{key}=10000.0"),
        )
    for side in ("low", "high"):
        if clip_ratio(config, side) >= _PPOS_RANGE:
            key = f"{ACTOR}.clip_ratio_{side}"
            yield Problem(
                key,
                clip_ratio(config, side),
                why=f"DPPO reads it as the largest divergence of a token, for which its authors take "
                f"{papers}; verl's default 0.2 is a range of ρ",
                valid=papers,
                fix=Line(f"{key}={papers}"),
            )


def _check_length(config: DictConfig) -> None:
    """Refuse a sum of tokens that verl divides by the longest response of each micro-batch, or by 0."""
    actor = config.actor_rollout_ref.actor
    if actor.loss_agg_mode == CONSTANT_LENGTH.mode and not is_positive(actor.loss_scale_factor):
        raise SettingError(
            SCALE_FACTOR,
            actor.loss_scale_factor,
            why="verl then divides by the longest response of each micro-batch, so that the gradient depends "
            "on how the batch is cut",
            valid="a number > 0",
            fix=Line(f"{SCALE_FACTOR}=${{data.max_response_length}}"),
        )


def dppo(name: str, equation: str, loss_mode: str, threshold: str) -> Algorithm:
    """Return DPPO with one of its divergences, on verl's loss of that name."""
    loss = VerlsLoss(
        loss_mode,
        settings=(check_clip_range, _needs_truncation),
        checks={"constant-length": _check_length},
        advice={"verls-losses": partial(_advise, threshold)},
    )
    return Algorithm(
        name,
        f"arXiv 2602.04879, {equation}",
        DR_GRPO.estimator,
        loss,
        CONSTANT_LENGTH.mode,
        fixed=(f"{ACTOR}.clip_ratio_c",),
        title="Qi et al., Rethinking the Trust Region in LLM RL",
        fixes="a clip of ratios, too strict for rare tokens: the distance of two policies masks a token",
    )


DPPO = dppo("dppo", "eq. 13", "dppo_tv", "0.15")
