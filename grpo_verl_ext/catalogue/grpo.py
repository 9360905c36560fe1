"""GRPO, and what differs from it by its estimator or average alone.

Shao et al., DeepSeekMath, arXiv 2402.03300; Liu et al., Understanding R1-Zero-Like Training, arXiv
2503.20783; BNPO as TRL has it.
"""

from grpo_verl_ext.algorithms.advantages import centred
from grpo_verl_ext.catalogue.averages import AVERAGES, LOCAL_TOKEN_MEAN
from grpo_verl_ext.catalogue.clipped import clipped_loss
from grpo_verl_ext.catalogue.record import Algorithm, Estimator

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
