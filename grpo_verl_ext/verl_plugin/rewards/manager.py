"""The reward manager ``rule_and_model``: verl's ``naive``, and a classifier beside the reward function."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from omegaconf import DictConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from grpo_verl_ext import catalogue
from grpo_verl_ext.rewards import steps
from grpo_verl_ext.rewards.learned import LearnedReward
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
        row = data[-1]
        prompt, ids = (  # as many tokens as the agent loop says: the others are padding
            row.batch[f"{field}s"][: int(row.non_tensor_batch[f"{field}_len"])].tolist()
            for field in ("prompt", "response")
        )
        options, run = self._options, partial(self.loop.run_in_executor, self._one_at_a_time)
        text = self._decode(prompt)
        if self._of_steps:
            with_steps: dict[str, Any] = await run(self._with_steps, text, ids, result)
            return with_steps
        asked = row.non_tensor_batch["raw_prompt"] if options.chat_template else text
        by_model, by_rule = await run(self._model.score, asked, self._decode(ids)), result["reward_score"]
        if not math.isfinite(by_model):
            raise ValueError(f"reward_model_score of a response is {by_model}; valid is a finite number")
        score = options.rule_weight * by_rule + options.weight * by_model
        parts = {"rule_score": by_rule} if options.rule_weight else {}
        parts |= {"reward_model_score": by_model, "score": score}
        return {"reward_score": score, "reward_extra_info": result["reward_extra_info"] | parts}

    def _with_steps(self, prompt: str, ids: list[int], result: dict[str, Any]) -> dict[str, Any]:
        """Return the result with mixed step rewards; the trainer raises where there are no fitting steps."""
        options, report = self._options, result["reward_extra_info"]
        if not options.rule_weight:  # the function may return ends alone
            report = {steps.REWARDS: [0.0] * len(report.get(steps.ENDS, ()))} | report
        try:
            ends = steps.checked_ends(report, len(self._decode(ids)))
        except steps.StepRewardError:
            return result | {"reward_extra_info": report}
        by_rule = list(map(float, report[steps.REWARDS]))
        by_model = self._model.scores_of_steps(prompt, self._decode(ids), ends)
        both = zip(by_rule, by_model, strict=True)
        parts = {
            steps.REWARDS: [options.rule_weight * rule + options.weight * right for rule, right in both],
            "step_rule_score": sum(by_rule) / max(1, len(ends)),
            "step_reward_model_score": sum(by_model) / max(1, len(ends)),
        }
        return result | {"reward_extra_info": report | parts}
