"""GVPO as distillation: Zhang et al., GVPO++, arXiv 2609.21432; GVPO around a teacher, without a reward.

The paper's text was not at hand; the formulas are derived in `distillation`.
"""

from torch import Tensor

from grpo_verl_ext.catalogue.gvpo import ANCHOR, FULL_SUPPORT, GVPO
from grpo_verl_ext.catalogue.record import Algorithm, Estimator
from grpo_verl_ext.catalogue.requires import ONE_OUTPUT, In, Off, refused
from grpo_verl_ext.catalogue.verls import KL_IN_REWARD

_NAME = "gvpo_distill"


def _no_reward(rewards: Tensor, group: Tensor, member: Tensor) -> Tensor:  # a `Baseline`
    """0 for every response, whatever its reward: (B,) → (B,). GVPO's only target is then its anchor."""
    return rewards.new_zeros(rewards.shape)


GVPO_DISTILL = Algorithm(
    _NAME,
    "arXiv 2609.21432",
    Estimator(
        _NAME,
        str(_no_reward.__doc__),
        _no_reward,
        sums_to_zero=True,
        one_output=ONE_OUTPUT,
        requires=(
            *refused(In(ANCHOR, ("teacher",), "is the minimiser: without a reward nothing else is learned")),
            Off(KL_IN_REWARD, "is computed for nothing, since no reward counts"),
            *FULL_SUPPORT,
        ),
    ),
    GVPO.loss,
    paired=True,
    no_call="it is GVPO without a reward, with the teacher's log-probs in the place of the old ones. Type: "
    "losses.gvpo(log_prob, teacher_log_prob, response_mask, rewards=torch.zeros(len(groups)), groups=groups, "
    "gvpo_beta=1)",
    title="Zhang et al., GVPO++",
    fixes="distillation between tokenizers, and from samples that the student did not write",
)
