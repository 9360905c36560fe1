"""DAPO: Yu et al., arXiv 2503.14476; over the mini-batch's tokens, and per prompt as printed."""

from dataclasses import replace

from grpo_verl_ext.catalogue.averages import PROMPT_MEAN, TOKEN_MEAN
from grpo_verl_ext.catalogue.clipped import clipped_loss
from grpo_verl_ext.catalogue.record import Algorithm, Estimator

DAPO_LOSS = clipped_loss("dapo", TOKEN_MEAN)
"""Every token of the mini-batch has equal weight: `aggregation.token_mean`."""

_DAPO = Algorithm(
    "dapo",
    "arXiv 2503.14476",
    Estimator(
        "dapo",
        "Compute DAPO's advantages, GRPO's Â (arXiv 2503.14476 eq. 9); verl's ``filter_groups`` filters.",
    ),
    DAPO_LOSS,
    title="Yu et al., DAPO",
    fixes="collapse of entropy, prompts without a gradient, long responses whose tokens count less",
)

_DAPO_PER_PROMPT = Algorithm(
    "dapo_per_prompt",
    "arXiv 2503.14476, eq. 8 as printed",
    Estimator(
        "dapo_per_prompt",
        """Compute DAPO's advantages Â/N_x for the paper's mean per prompt: `advantages.per_prompt_token`.

    N_x counts the prompt's tokens left by rollout rejection, over which the loss of the same name sums.
    verl's ``critic/advantages/*`` then show Â/N_x.
    """,
        per_prompt_token=True,
    ),
    replace(
        clipped_loss("dapo_per_prompt", PROMPT_MEAN),
        one_output="its mean is over prompts, which it counts by their responses",
    ),
    paired=True,
    has_preset=False,
    values_of=_DAPO.name,
)
"""Every prompt has equal weight, as DAPO's formula is printed: `aggregation.prompt_mean`."""
