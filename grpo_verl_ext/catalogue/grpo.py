"""GRPO, and what differs from it by its estimator or average alone.

Shao et al., DeepSeekMath, arXiv 2402.03300; Liu et al., Understanding R1-Zero-Like Training, arXiv
2503.20783; BNPO as TRL has it.
"""

from grpo_verl_ext.algorithms.advantages import centred
from grpo_verl_ext.algorithms.kl import surrogate_with_unbiased_kl
from grpo_verl_ext.algorithms.surrogate import token_events
from grpo_verl_ext.catalogue.averages import AVERAGES, LOCAL_TOKEN_MEAN
from grpo_verl_ext.catalogue.clipped import check_clip_range, clipped_loss, clips
from grpo_verl_ext.catalogue.record import Algorithm, Estimator, TokenLoss, own_options
from grpo_verl_ext.utils.options import PositiveFloat, Section, option

_OUTCOME = Estimator(
    "grpo_outcome",
    "Compute GRPO's outcome advantages Â = (r − mean r)/(std r + ε): `advantages.group_scaled`.",
    kl_in_loss=True,
)
_LOSS = clipped_loss("grpo", AVERAGES["seq-mean-token-mean"])
"""Every response has equal weight, arXiv 2402.03300 eq. 3: `aggregation.sequence_mean_token_mean`."""

GRPO = Algorithm(
    "grpo",
    "arXiv 2402.03300, §4.1",
    _OUTCOME,
    _LOSS,
    title="Shao et al., DeepSeekMath",
    fixes="PPO's critic, a second model to train: the mean reward of a prompt's responses takes its place",
)

GRPO_PROCESS = Algorithm(
    "grpo_process",
    "arXiv 2402.03300, §4.1.3",
    Estimator(
        "grpo_process",
        """Compute GRPO's advantages with process supervision, arXiv 2402.03300 §4.1.3: `process_advantages`.

    The trainer sets the steps (`wire.PASSED`); ``token_level_rewards``, the outcome, gives the dtype.
    The steps of a rejected response stay in mean and standard deviation.

    Raises:
        ValueError: no steps are set: the trainer mode or the agent loop is verl's own.
    """,
        one_output="the ends of steps are positions in one output",
        needs_steps=True,
        kl_in_loss=True,
    ),
    _LOSS,
    title="Shao et al., DeepSeekMath",
    fixes="one reward for a whole response: here each step has its own",
)


class _KlOptions(Section):
    unbiased_kl_coef: PositiveFloat = option(0.04, "β of the unbiased KL", "a finite number > 0", "0.04")


_UNBIASED_KL = Algorithm(
    "grpo_unbiased_kl",
    "arXiv 2512.02556",
    _OUTCOME,
    TokenLoss(
        "grpo_unbiased_kl",
        surrogate_with_unbiased_kl,
        AVERAGES["seq-mean-token-mean"],
        lambda *tokens, kl_coef, **clip: token_events(*tokens, **clip),  # noqa: ARG005, PLW0108
        keywords=lambda config: clips(config) | own_options(_KlOptions, config),
        options=_KlOptions,
        settings=(check_clip_range,),
    ),
    title="DeepSeek-AI, DeepSeek-V3.2",
    fixes="the gradient of GRPO's KL term, which is that of another divergence: ρ k3 has the right one",
)

_BNPO = Algorithm(
    "bnpo",
    "TRL's loss_type bnpo",
    _OUTCOME,
    clipped_loss("bnpo", LOCAL_TOKEN_MEAN),
    fixes="for comparison: the mean over the tokens of the local batch",
)

DR_GRPO = Algorithm(
    "dr_grpo",
    "arXiv 2503.20783",
    Estimator("dr_grpo", str(centred.__doc__), centred),
    clipped_loss("dr_grpo", AVERAGES["seq-mean-token-sum-norm"]),
    title="Liu et al., Understanding R1-Zero-Like Training",
    fixes="GRPO's divisions by length and standard deviation, which favour long wrong responses",
)
"""Tokens are summed and divided by the response budget: `aggregation.sequence_mean_constant_length`."""
