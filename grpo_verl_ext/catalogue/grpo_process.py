"""GRPO with process supervision: Shao et al., DeepSeekMath, arXiv 2402.03300, §4.1.3."""

from grpo_verl_ext.catalogue.grpo import GRPO_LOSS
from grpo_verl_ext.catalogue.record import Algorithm, Estimator

_PROCESS = Estimator(
    "grpo_process",
    """Compute GRPO's advantages with process supervision, arXiv 2402.03300 §4.1.3: `process_advantages`.

    The trainer sets the steps (`wire.STEPS`); ``token_level_rewards``, the outcome, gives the dtype.
    The steps of a rejected response stay in mean and standard deviation.

    Raises:
        ValueError: no steps are set: the trainer mode or the agent loop is verl's own.
    """,
    one_output="the ends of steps are positions in one output",
    needs_steps=True,
    kl_in_loss=True,
)

GRPO_PROCESS = Algorithm(
    "grpo_process",
    "arXiv 2402.03300, §4.1.3",
    _PROCESS,
    GRPO_LOSS,
    title="Shao et al., DeepSeekMath",
    fixes="one reward for a whole response: here each step has its own",
)
