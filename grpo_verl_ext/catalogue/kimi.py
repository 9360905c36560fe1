"""Kimi k1.5's policy mirror descent: Kimi Team, Scaling RL with LLMs, arXiv 2501.12599, §2.3.2."""

from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from grpo_verl_ext.algorithms.mirror_descent import mirror_descent_loss
from grpo_verl_ext.catalogue.averages import SEQUENCE_MEAN_TOKEN_SUM
from grpo_verl_ext.catalogue.dr_grpo import DR_GRPO
from grpo_verl_ext.catalogue.record import Algorithm, TokenLoss
from grpo_verl_ext.catalogue.weights import (
    ONE_OUTPUT,
    is_stored,
    no_token_rejection,
    no_token_weights,
    several_policies,
)
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import BYPASS, POLICY_LOSS, SECTION, setting
from grpo_verl_ext.utils.options import PositiveFloat, Section, option

_TAU = 0.1


class KimiOptions(Section):
    """Keys of the loss in ``actor.policy_loss``."""

    kimi_tau: PositiveFloat = option(
        _TAU, "τ of policy mirror descent, in reward units per nat", "a finite number > 0", str(_TAU)
    )


def _kimi(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor, config: Any
) -> Tensor:
    """Compute the loss with τ of ``actor.policy_loss``: `mirror_descent.mirror_descent_loss`."""
    tau = config.policy_loss.get("kimi_tau", _TAU)
    return mirror_descent_loss(log_prob, old_log_prob, advantages, response_mask, tau=tau)


def _check_left_out(config: DictConfig) -> None:
    """Refuse options that leave responses out by an advantage of 0, or for having moved."""
    masks, threshold = f"{SECTION}.mask_truncated_completions", f"{POLICY_LOSS}.off_policy_mask_threshold"
    if setting(config, masks):
        raise SettingError(
            masks,
            True,
            why="it gives truncated responses the advantage 0, which the squared log-ratio of kimi does not "
            "leave out: it pulls them back to π_old",
            valid="false, and a reward that punishes them",
            fix=Line(f"{masks}=false"),
        )
    if setting(config, threshold) is not None:
        raise SettingError(
            threshold,
            setting(config, threshold),
            why="it leaves out bad responses that have moved far, which the squared log-ratio of kimi is "
            "there to hold",
            valid="null",
            fix=Line(f"{threshold}=null"),
        )


def _check_old_policy(config: DictConfig) -> None:
    """Refuse old log-probs of several policies in the responses to one prompt."""
    of_one = "kimi's mean reward of a prompt stands for the normaliser of one policy"
    trainer = several_policies(config)
    if trainer and setting(config, BYPASS):
        raise SettingError(
            BYPASS,
            True,
            why=f"with {trainer} the responses of a prompt may come from several policies, and {of_one}",
            valid="false",
            fix=Line(f"{BYPASS}=false"),
        )
    recorded = f"{SECTION}.stored_responses.old_log_probs"
    if setting(config, recorded) == "recorded" and is_stored(config):
        raise SettingError(
            recorded,
            "recorded",
            why=f"the stored responses of a prompt have another π_old than the sampled ones, and {of_one}",
            valid="actor",
            fix=Line(f"{recorded}=actor"),
        )


KIMI = Algorithm(
    "kimi",
    "arXiv 2501.12599, §2.3.2",
    DR_GRPO.estimator,
    TokenLoss(
        "kimi",
        _kimi,
        SEQUENCE_MEAN_TOKEN_SUM,
        doc=str(mirror_descent_loss.__doc__),
        options=KimiOptions,
        one_advantage=True,
        one_output=ONE_OUTPUT,
        checks={
            "kimi-weights": no_token_weights(
                "the squared error of policy mirror descent has the same minimum wherever its responses come "
                "from (arXiv 2501.12599, §2.3.2), and a weight of a token makes it another function",
                has_rollouts_ratio=False,
            ),
            "kimi-rejection": no_token_rejection,
            "kimi-left-out": _check_left_out,
            "kimi-old-policy": _check_old_policy,
        },
    ),
    title="Kimi Team, Scaling RL with LLMs",
    fixes="critic and clip: a squared log-ratio of the whole response holds the policy",
)
