"""GVPO as distillation: Zhang et al., GVPO++, arXiv 2609.21432; GVPO around a teacher, without a reward.

The paper's text was not at hand; the formulas are derived in `algorithms.distillation`.
"""

from collections.abc import Iterator

from omegaconf import DictConfig
from torch import Tensor

from grpo_verl_ext.catalogue.gvpo import GVPO_LOSS, advise_sampling
from grpo_verl_ext.catalogue.record import Algorithm, Estimator
from grpo_verl_ext.catalogue.weights import ONE_OUTPUT
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import SECTION, setting

_NAME = "gvpo_distill"


def no_reward(rewards: Tensor, group: Tensor, member: Tensor) -> Tensor:  # noqa: ARG001  # a `Baseline`
    """0 for every response, whatever its reward: (B,) → (B,). GVPO's only target is then its anchor."""
    return rewards.new_zeros(rewards.shape)


def _check_teacher(config: DictConfig) -> None:
    """Refuse another anchor: without a reward there is then nothing to learn."""
    key = f"{SECTION}.gvpo_anchor"
    anchor = setting(config, key, "old")
    if anchor != "teacher":
        raise SettingError(
            key,
            anchor,
            why=f"algorithm.adv_estimator={_NAME} has no reward, and its minimiser is the anchor",
            valid="teacher",
            fix=Line(f"{key}=teacher"),
        )


def _advise_reward(config: DictConfig) -> Iterator[Problem]:
    """Warn of a KL in the reward, which no reward brings into the loss."""
    key = "algorithm.use_kl_in_reward"
    if setting(config, key, False):
        yield Problem(
            key,
            True,
            why="no reward counts here, so that the KL is computed for nothing",
            fix=Line(f"{key}=false"),
        )


GVPO_DISTILL = Algorithm(
    _NAME,
    "arXiv 2609.21432",
    Estimator(
        _NAME,
        str(no_reward.__doc__),
        no_reward,
        sums_to_zero=True,
        needs_teacher=True,
        one_output=ONE_OUTPUT,
        checks={"distillation": _check_teacher},
        advice={"sampling": advise_sampling, "distillation-reward": _advise_reward},
    ),
    GVPO_LOSS,
    paired=True,
    no_call="it is GVPO without a reward, with the teacher's log-probs in the place of the old ones. Type: "
    "losses.gvpo(log_prob, teacher_log_prob, response_mask, rewards=torch.zeros(len(groups)), groups=groups, "
    "gvpo_beta=1)",
    title="Zhang et al., GVPO++",
    fixes="distillation between tokenizers, and from samples that the student did not write",
)
