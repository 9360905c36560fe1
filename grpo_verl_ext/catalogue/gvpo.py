"""GVPO: Zhang et al., Group Variance Policy Optimization, arXiv 2504.19599; its loss needs whole groups."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from grpo_verl_ext.algorithms import gvpo_terms
from grpo_verl_ext.algorithms.advantages import centred
from grpo_verl_ext.algorithms.gvpo import drift, residual, sequence_log_ratio, squared_error
from grpo_verl_ext.catalogue import requires
from grpo_verl_ext.catalogue.record import Algorithm, Estimator, GroupLoss, MiniBatchStatistic
from grpo_verl_ext.catalogue.verls import KL_IN_REWARD
from grpo_verl_ext.utils.errors import Line
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, POLICY_LOSS, ROLLOUT, SECTION, setting
from grpo_verl_ext.utils.options import Number, PositiveFloat, Section, option

_NAME = "gvpo"
_ALL_TERMS = "all"
"""Value of ``policy_loss.gvpo_terms`` for GVPO itself; the others are in `gvpo_terms.ABLATED_LOSSES`."""
_TERMS = (_ALL_TERMS, *gvpo_terms.ABLATED_LOSSES)

ANCHOR = f"{SECTION}.gvpo_anchor"
ANCHORS = {"old": "old_log_probs", "ref": "ref_log_prob"}
"""Values of that key → field of verl's batch with the anchor's log-probs; features may add others."""
_WITHOUT_PRESET = (
    f"{POLICY_LOSS}._target_=grpo_verl_ext.verl_plugin.loss_config.LossConfig +{POLICY_LOSS}.gvpo_beta=0.1"
)


class GvpoOptions(Section):
    """GVPO's keys of ``actor.policy_loss``."""

    gvpo_beta: PositiveFloat = option(
        None,
        "β of GVPO, reward units per nat; larger stays nearer to the anchor",
        "a finite number > 0",
        "0.1",
        why=f"policy_loss.loss_mode={_NAME} needs its β",
        fix=Line(f"+algo@_global_={_NAME}", more=f", or without the preset: {_WITHOUT_PRESET}"),
    )
    gvpo_alpha: Annotated[Number, Field(ge=0)] = option(
        0.0, "α of a response's weight |y|^(−α); GVPO's is 0", "a finite number ≥ 0", "0"
    )
    gvpo_terms: Literal[_TERMS] = option(  # type: ignore[valid-type]
        _ALL_TERMS, "GVPO, or without one of its terms, its paper's ablation", _TERMS, _ALL_TERMS
    )


def alpha_of(policy_loss: Mapping[str, Any]) -> float:
    """Return α of the weights |y|^(−α), from verl's section ``actor.policy_loss``."""
    return float(policy_loss.get("gvpo_alpha", 0))


_SUPPORT = "gives responses the probability 0, where Theorem 2 of GVPO needs full support"
_WHOLE = Line(f"{ROLLOUT}.top_p=1", f"{ROLLOUT}.top_k=-1")

FULL_SUPPORT = (
    requires.AtLeast(f"{ROLLOUT}.top_p", 1, _SUPPORT, line=_WHOLE),
    requires.In(f"{ROLLOUT}.top_k", (-1, 0), _SUPPORT, line=_WHOLE),
)
"""How responses are sampled that Theorem 2 is about."""

_DOC = f"""{squared_error.__doc__}

    {sequence_log_ratio.__doc__}

    A bar is the mean over the prompt's k responses. Ã_i = A_i with the policy before the updates as anchor.

    {residual.__doc__}
"""

_LOSS = GroupLoss(
    _NAME,
    doc=_DOC,
    options=GvpoOptions,
    needs=MiniBatchStatistic(lambda rows, config: drift(rows, alpha_of(config.policy_loss)), of_prompts=True),
    requires=(
        *requires.refused(
            requires.Off(
                BYPASS,
                "takes the recorded log-probs of several policies, which are no common anchor of a prompt",
                when=requires.Where(
                    "the anchor is the old policy, and the responses to a prompt may come from several",
                    lambda config: (
                        setting(config, ANCHOR, "old") == "old" and requires.several_policies(config)
                    ),
                ),
            )
        ),
        requires.WHOLE_RESPONSES,
        requires.Off(
            "algorithm.filter_groups.enable",
            "drops prompts with equal rewards, on which the anchor would still pull",
            when=requires.Where(
                "the anchor is another than the policy of the rollout",
                lambda config: setting(config, ANCHOR, "old") != "old",
            ),
        ),
    ),
)

_ADDED = (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.entropy_coeff", "algorithm.use_kl_in_reward")
"""What would move the minimiser away from π′ e^{R/β} (Theorem 1), whose authors use none of it."""

GVPO = Algorithm(
    _NAME,
    "arXiv 2504.19599",
    Estimator(
        _NAME,
        str(centred.__doc__),
        centred,
        sums_to_zero=True,
        one_output=requires.ONE_OUTPUT,
        requires=(
            *requires.refused(
                requires.In(
                    f"{ACTOR}.use_kl_loss",
                    (True,),
                    "has verl load no reference for the anchor",
                    when=requires.Where(
                        "the anchor is the reference, and no KL in the reward has verl load it",
                        lambda config: setting(config, ANCHOR) == "ref" and not setting(config, KL_IN_REWARD),
                    ),
                    line=Line(f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0"),
                )
            ),
            *FULL_SUPPORT,
        ),
    ),
    _LOSS,
    paired=True,
    fixed=_ADDED,
    title="Zhang et al., Group Variance Policy Optimization",
    fixes="clip and importance weights: a squared error with one optimum, whoever wrote the responses",
)
