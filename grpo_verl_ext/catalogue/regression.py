"""Losses that fit log-ratios to rewards, `algorithms.regression`."""

from typing import Literal

from grpo_verl_ext.algorithms.regression import klpo_loss, mirror_descent_loss
from grpo_verl_ext.catalogue import requires
from grpo_verl_ext.catalogue.averages import AVERAGES
from grpo_verl_ext.catalogue.grpo import DR_GRPO
from grpo_verl_ext.catalogue.record import Algorithm, Estimator, TokenLoss, own_options
from grpo_verl_ext.utils.keys import BYPASS, SECTION
from grpo_verl_ext.utils.options import PositiveFloat, Section, option


class _KimiOptions(Section):
    kimi_tau: PositiveFloat = option(
        0.1, "τ of policy mirror descent, in reward units per nat", "a finite number > 0", "0.1"
    )


_KIMI = Algorithm(
    "kimi",
    "arXiv 2501.12599, §2.3.2",
    DR_GRPO.estimator,
    TokenLoss(
        "kimi",
        mirror_descent_loss,
        AVERAGES["seq-mean-token-sum"],
        keywords=lambda config: own_options(_KimiOptions, config),
        options=_KimiOptions,
        one_output=requires.ONE_OUTPUT,
        requires=requires.refused(
            requires.Null(
                requires.WEIGHTS,
                "weighs tokens of a squared error with the same minimum wherever its responses come from "
                "(arXiv 2501.12599, §2.3.2)",
            ),
            requires.WHOLE_RESPONSES,
            requires.Off(
                f"{SECTION}.mask_truncated_completions",
                "gives truncated responses the advantage 0, by which the loss pulls them back to π_old",
            ),
            requires.Off(
                BYPASS,
                "takes old log-probs of several policies for a prompt, and kimi's mean reward of a prompt "
                "approximates the normaliser of one policy",
                when=requires.Where(
                    "responses to a prompt may come from several policies",
                    lambda config: requires.is_stored(config) or requires.several_policies(config),
                ),
            ),
        ),
    ),
    title="Kimi Team, Scaling RL with LLMs",
    fixes="critic and clip: a squared log-ratio of the whole response holds the policy",
)


class _KlpoOptions(Section):
    klpo_beta: PositiveFloat = option(0.1, "β, in reward units per nat", "a finite number > 0", "0.1")
    klpo_level: Literal["token", "sequence"] = option(
        "token", "residual of each token, or one of the response"
    )


_KLPO = Algorithm(
    "klpo",
    "arXiv 2610.08963",
    Estimator(
        "raw_reward",
        "Return the reward of a response, without a baseline: A_i = r_i.",
        lambda rewards, _group, _member: rewards,
    ),
    TokenLoss(
        "klpo",
        klpo_loss,
        keywords=lambda config: own_options(_KlpoOptions, config),
        options=_KlpoOptions,
        one_output=requires.ONE_OUTPUT,
    ),
    "token-mean",
    title="KLPO",
    fixes="clip and baseline: log-ratios are fitted to the reward, weighed by the binary KL",
)
