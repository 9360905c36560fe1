"""DPPO by total variation and by KL: Qi et al., Rethinking the Trust Region in LLM RL, arXiv 2602.04879."""

from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH
from grpo_verl_ext.catalogue.clipped import check_clip_range
from grpo_verl_ext.catalogue.dr_grpo import DR_GRPO
from grpo_verl_ext.catalogue.record import Algorithm, VerlsLoss
from grpo_verl_ext.catalogue.requires import AtMost
from grpo_verl_ext.utils.keys import ACTOR


def _dppo(name: str, equation: str, loss_mode: str) -> Algorithm:
    """Return DPPO with one of its divergences, on verl's loss of that name."""
    rows = (
        AtMost(
            f"{ACTOR}.clip_ratio_{side}",
            0.19,
            "is read as the largest divergence of a token, where verl's default 0.2 is a range of ρ",
        )
        for side in ("low", "high")
    )
    return Algorithm(
        name,
        f"arXiv 2602.04879, {equation}",
        DR_GRPO.estimator,
        VerlsLoss(loss_mode, settings=(check_clip_range,), requires=(*rows,)),
        CONSTANT_LENGTH.mode,
        fixed=(f"{ACTOR}.clip_ratio_c",),  # at which verl truncates ρ: small values bias the gradient (§5.4)
        title="Qi et al., Rethinking the Trust Region in LLM RL",
        fixes="a clip of ratios, too strict for rare tokens: the distance of two policies masks a token",
    )


_DPPO, _DPPO_KL = _dppo("dppo", "eq. 13", "dppo_tv"), _dppo("dppo_kl", "eq. 14", "dppo_kl")
