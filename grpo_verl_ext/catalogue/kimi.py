"""Kimi k1.5's policy mirror descent: Kimi Team, Scaling RL with LLMs, arXiv 2501.12599, §2.3.2."""

from grpo_verl_ext.algorithms.mirror_descent import mirror_descent_loss
from grpo_verl_ext.catalogue import requires
from grpo_verl_ext.catalogue.averages import AVERAGES
from grpo_verl_ext.catalogue.grpo import DR_GRPO
from grpo_verl_ext.catalogue.record import Algorithm, TokenLoss
from grpo_verl_ext.utils.keys import BYPASS, POLICY_LOSS, SECTION
from grpo_verl_ext.utils.options import PositiveFloat, Section, option

_TAU = 0.1


class _KimiOptions(Section):
    """Keys of the loss in ``actor.policy_loss``."""

    kimi_tau: PositiveFloat = option(
        _TAU, "τ of policy mirror descent, in reward units per nat", "a finite number > 0", str(_TAU)
    )


_KIMI = Algorithm(
    "kimi",
    "arXiv 2501.12599, §2.3.2",
    DR_GRPO.estimator,
    TokenLoss(
        "kimi",
        mirror_descent_loss,
        AVERAGES["seq-mean-token-sum"],
        keywords=lambda config: {"tau": config.policy_loss.get("kimi_tau", _TAU)},
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
            requires.Null(
                f"{POLICY_LOSS}.off_policy_mask_threshold",
                "leaves out bad responses that have moved far, which the loss is there to hold",
            ),
            requires.Off(
                BYPASS,
                "takes old log-probs of several policies for a prompt, and kimi's mean reward of a prompt "
                "stands for the normaliser of one policy",
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
