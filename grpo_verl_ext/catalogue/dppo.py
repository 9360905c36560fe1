"""DPPO: Qi et al., Rethinking the Trust Region in LLM RL, arXiv 2602.04879; verl's own losses, TV and KL."""

from collections.abc import Iterator
from functools import partial

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH
from grpo_verl_ext.catalogue.dr_grpo import DR_GRPO
from grpo_verl_ext.catalogue.record import Algorithm, VerlsLoss
from grpo_verl_ext.catalogue.verls import clip_ratio
from grpo_verl_ext.utils.errors import Problem
from grpo_verl_ext.utils.keys import ACTOR

_LARGE = 100.0
"""A truncation of ρ from here on cuts off next to nothing; verl's example has 10000."""
_PPOS_RANGE = 0.2
"""verl's default for a clip of ρ; as a divergence it is four times the authors' for KL."""


def _advise(papers: str, config: DictConfig) -> Iterator[Problem]:
    """Warn of verl's defaults, which are made for a clip of ρ and are other numbers here."""
    actor = config.actor_rollout_ref.actor
    if actor.clip_ratio_c is None or actor.clip_ratio_c < _LARGE:
        key = f"{ACTOR}.clip_ratio_c"
        yield Problem(
            key,
            actor.clip_ratio_c,
            why="DPPO truncates ρ there, and small values bias the gradient against rare tokens (arXiv "
            "2602.04879, §5.4); verl's default 3.0 is that of a dual clip",
            valid="a large number, or no truncation that acts",
            fix=f"{key}=10000.0",
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
                fix=f"{key}={papers}",
            )


def _loss(name: str, papers: str) -> VerlsLoss:
    return VerlsLoss(name, advice={"verls-losses": partial(_advise, papers)})


DPPO = Algorithm(
    "dppo", "arXiv 2602.04879, eq. 13", DR_GRPO.estimator, _loss("dppo_tv", "0.15"), CONSTANT_LENGTH.mode
)
DPPO_KL = Algorithm(
    "dppo_kl", "arXiv 2602.04879, eq. 14", DR_GRPO.estimator, _loss("dppo_kl", "0.05"), CONSTANT_LENGTH.mode
)
