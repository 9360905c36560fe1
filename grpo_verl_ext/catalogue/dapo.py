"""DAPO over the mini-batch's tokens, and per prompt as printed; estimators of other papers with its loss.

Yu et al., arXiv 2503.14476; GDPO, arXiv 2601.05242; Lite PPO, arXiv 2508.08221; MaxRL, arXiv 2602.02710.
"""

from dataclasses import replace

from grpo_verl_ext.algorithms.advantages import decoupled, mean_scaled
from grpo_verl_ext.catalogue.averages import AVERAGES, PROMPT_MEAN
from grpo_verl_ext.catalogue.clipped import clipped_loss
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.catalogue.record import Algorithm, Estimator
from grpo_verl_ext.catalogue.requires import Off
from grpo_verl_ext.catalogue.verls import PUNISHES, overlong_punishment

_LOSS = clipped_loss("dapo", AVERAGES["token-mean"])
"""Every token of the mini-batch has equal weight: `aggregation.token_mean`."""

_DAPO = Algorithm(
    "dapo",
    "arXiv 2503.14476",
    Estimator(
        "dapo",
        "Compute DAPO's advantages, GRPO's Â (arXiv 2503.14476 eq. 9); verl's ``filter_groups`` filters.",
    ),
    _LOSS,
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

_GDPO = Algorithm(
    "gdpo",
    "arXiv 2601.05242",
    Estimator("gdpo_outcome", str(decoupled.__doc__), several_rewards=True),
    _LOSS,
    title="Liu et al., Group reward-Decoupled Normalization Policy Optimization",
    fixes="several rewards, of which one outweighs the others by its spread",
)

_LITE_PPO = Algorithm(
    "lite_ppo",
    "arXiv 2508.08221",
    GRPO.estimator,
    _LOSS,
    title="Liu et al., Tricks or Traps?",
    fixes="many tricks: two are kept, the batch's standard deviation and a mean over tokens",
)

_MAXRL = Algorithm(
    "maxrl",
    "arXiv 2602.02710",
    Estimator(
        "maxrl",
        str(mean_scaled.__doc__),
        mean_scaled,
        requires=(
            Off(
                PUNISHES,
                "makes the reward 0 of a long response negative; MaxRL, which divides by a prompt's mean "
                "reward, then ends the training",
                when=overlong_punishment,
            ),
        ),
    ),
    _LOSS,
    title="Tajwar et al., Maximum Likelihood Reinforcement Learning",
    fixes="expected reward, by which rare right answers count little",
)
