"""GSPO: Zheng et al., Group Sequence Policy Optimization, arXiv 2507.18071; verl's own loss."""

from collections.abc import Iterator

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.averages import SEQUENCE_MEAN_TOKEN_SUM
from grpo_verl_ext.catalogue.clipped import check_clip_range, clip_ratio
from grpo_verl_ext.catalogue.grpo import GRPO_OUTCOME
from grpo_verl_ext.catalogue.record import DUAL_CLIP, Algorithm, VerlsLoss
from grpo_verl_ext.catalogue.weights import ONE_OUTPUT, no_token_rejection
from grpo_verl_ext.utils.errors import Line, Problem
from grpo_verl_ext.utils.keys import ACTOR, AGGREGATION, setting

_TOKENS_RANGE = 0.1
"""From here on, a clip range is one of tokens' ratios, where GRPO's losses have 0.2."""
_TOKEN_SUM = SEQUENCE_MEAN_TOKEN_SUM.mode
"""Average of LUSPO, which is GSPO with it."""


def _advise_clip_range(config: DictConfig) -> Iterator[Problem]:
    """Warn of a clip range that is one of tokens, verl's default."""
    is_luspo = setting(config, AGGREGATION) == _TOKEN_SUM
    source = "arXiv 2602.05261" if is_luspo else "arXiv 2507.18071, §5.1"
    for side, papers in zip(
        ("low", "high"), ("2e-3", "2.5e-3") if is_luspo else ("3e-4", "4e-4"), strict=True
    ):
        if clip_ratio(config, side) >= _TOKENS_RANGE:
            key = f"{ACTOR}.clip_ratio_{side}"
            yield Problem(
                key,
                clip_ratio(config, side),
                why="it clips the ratio of a whole response to the power 1/|y|, which is near 1, where "
                f"GRPO's range clips nothing ({source})",
                valid=f"the paper's {papers}",
                fix=Line(f"{key}={papers}"),
            )


GSPO_LOSS = VerlsLoss(
    "gspo",
    papers_average=("seq-mean-token-mean", "GSPO is a mean over responses (arXiv 2507.18071, eq. 5)"),
    other_averages=(_TOKEN_SUM,),
    one_output=ONE_OUTPUT,
    unread=DUAL_CLIP,
    settings=(check_clip_range,),
    checks={"gspo-rejection": no_token_rejection},
    advice={"verls-losses": _advise_clip_range},
)

GSPO = Algorithm(
    "gspo",
    "arXiv 2507.18071",
    GRPO_OUTCOME,
    GSPO_LOSS,
    "seq-mean-token-mean",
    title="Zheng et al., Group Sequence Policy Optimization",
    fixes="ratios of tokens, whose noise adds up: one ratio for the whole response",
)
