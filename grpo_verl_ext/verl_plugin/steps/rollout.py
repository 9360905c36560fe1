"""Mix the step rewards of a reward function with a process reward model's."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_verl_ext.rewards.learned import LearnedStepReward, weighted
from grpo_verl_ext.rewards.steps import (
    CHARACTER_ENDS,
    KEYS,
    REWARDS,
    TOKEN_ENDS,
    Decode,
    StepRewardError,
    step_end_characters,
)
from grpo_verl_ext.verl_plugin.config import StepRewardModelOptions

BY_RULE, BY_MODEL = "step_rule_score", "step_reward_model_score"
"""Mean over a response's steps, without weight, in its extra info, and so in the metrics; 0 without steps."""


class StepScorer:
    """A process reward model with its weights."""

    def __init__(self, options: StepRewardModelOptions) -> None:
        if options.path is None:
            raise ValueError("algorithm.grpo_ext.step_reward_model.path is null; valid is a folder")
        self._options = options
        self._model = LearnedStepReward.load(options.path, dtype=options.dtype)

    def mixed(
        self, reported: Mapping[str, Any], prompt: str, ids: Sequence[int], decode: Decode
    ) -> dict[str, Any]:
        """Return the report with step rewards rule_weight · rule's + weight · P(right), in reward units.

        A report without steps, or whose steps do not fit the response, stays as it is: the trainer raises the
        error.

        Args:
            reported: what the reward function returned for one response.
            ids: all tokens of the response.
            decode: the function that decoded the reward function's text.
        """
        options = self._options
        report = dict(reported) if options.rule_weight else _with_zeros(reported)
        if not report.keys() & KEYS:
            return report
        try:
            ends = step_end_characters(report, ids, decode)
        except StepRewardError:
            return report
        by_rule = [float(reward) for reward in report[REWARDS]]
        by_model = self._model.scores(prompt, decode(ids), ends)
        weights = {BY_RULE: options.rule_weight, BY_MODEL: options.weight}
        steps = (dict(zip(weights, both, strict=True)) for both in zip(by_rule, by_model, strict=True))
        return report | {
            REWARDS: [weighted(step, weights) for step in steps],
            BY_RULE: _mean(by_rule),
            BY_MODEL: _mean(by_model),
        }


def _with_zeros(reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report with step rewards of 0 where the function returned ends alone."""
    ends = reported.get(CHARACTER_ENDS, reported.get(TOKEN_ENDS))
    if REWARDS in reported or not hasattr(ends, "__len__"):
        return dict(reported)
    return {**reported, REWARDS: [0.0] * len(ends)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
