"""The reward manager ``rule_and_model``: verl's ``naive``, and a classifier beside the reward function."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from omegaconf import DictConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from grpo_verl_ext import catalogue
from grpo_verl_ext.rewards.learned import LearnedReward
from grpo_verl_ext.rewards.steps import (
    CHARACTER_ENDS,
    REWARDS,
    TOKEN_ENDS,
    StepRewardError,
    step_end_characters,
)
from grpo_verl_ext.utils.keys import REWARD_MANAGER
from grpo_verl_ext.verl_plugin.config import Options, RewardModelOptions


@register(REWARD_MANAGER)
class _RuleAndModelRewardManager(NaiveRewardManager):  # type: ignore[misc]  # verl ships no types
    """score = rule_weight · (the reward function's score) + weight · (the model's score).

    With a ``rule_weight`` of 0 the function is not called, and the data need no ground truth. With the
    estimator ``grpo_process`` the model scores steps: each ``step_rewards`` is the same sum of the function's
    and the model's P(right), and the score is the function's.
    """

    def __init__(self, config: DictConfig, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, *args, **kwargs)
        self._options = Options.from_config(config.algorithm).reward_model or RewardModelOptions()
        self._of_steps = catalogue.learns_from_steps(config)
        path, dtype = str(self._options.path), self._options.dtype
        self._model = LearnedReward.load(path, of_steps=self._of_steps, dtype=dtype)
        self._decode = partial(tokenizer.decode, skip_special_tokens=True)
        self._one_at_a_time = ThreadPoolExecutor(1)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Score one response."""
        result: dict[str, Any] = {"reward_score": 0.0, "reward_extra_info": {}}
        if self._options.rule_weight or self._of_steps:
            result = await super().run_single(data)
        by_model = self._with_steps if self._of_steps else self._with_score
        added: dict[str, Any] = await self.loop.run_in_executor(
            self._one_at_a_time, by_model, data[-1:], result
        )
        return added

    def _with_score(self, data: DataProto, result: dict[str, Any]) -> dict[str, Any]:
        options, (prompt, response) = self._options, map(self._decode, _ids(data))
        chat = data[0].non_tensor_batch["raw_prompt"] if options.chat_template else None
        by_model = self._model.score(prompt if chat is None else chat, response)
        if not math.isfinite(by_model):
            raise ValueError(f"reward_model_score of a response is {by_model}; valid is a finite number")
        by_rule = result["reward_score"]
        score = options.rule_weight * by_rule + options.weight * by_model
        parts = {"rule_score": by_rule} if options.rule_weight else {}
        parts |= {"reward_model_score": by_model, "score": score}
        return {"reward_score": score, "reward_extra_info": result["reward_extra_info"] | parts}

    def _with_steps(self, data: DataProto, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result with mixed step rewards; the trainer raises where there are no fitting steps."""
        options, (prompt, ids), report = self._options, _ids(data), result["reward_extra_info"]
        if not options.rule_weight:  # the function may return ends alone
            ends = report.get(CHARACTER_ENDS, report.get(TOKEN_ENDS, ()))
            report = {REWARDS: [0.0] * len(ends)} | report
        try:
            ends = step_end_characters(report, ids, self._decode)
        except StepRewardError:
            return result | {"reward_extra_info": report}
        by_rule = list(map(float, report[REWARDS]))
        by_model = self._model.scores_of_steps(self._decode(prompt), self._decode(ids), ends)
        both = zip(by_rule, by_model, strict=True)
        parts = {
            REWARDS: [options.rule_weight * rule + options.weight * right for rule, right in both],
            "step_rule_score": sum(by_rule) / max(1, len(ends)),
            "step_reward_model_score": sum(by_model) / max(1, len(ends)),
        }
        return result | {"reward_extra_info": report | parts}


def _ids(data: DataProto) -> Iterator[list[int]]:
    """Yield the tokens of prompt and response: as many as the agent loop says, the others are padding."""
    row = data[0]
    for field in ("prompt", "response"):
        yield row.batch[f"{field}s"][: int(row.non_tensor_batch[f"{field}_len"])].tolist()
