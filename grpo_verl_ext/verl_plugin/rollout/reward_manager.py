"""The reward manager ``rule_and_model``: verl's ``naive`` plus reward models of responses and of steps."""

import asyncio
from functools import partial
from typing import Any

import aiohttp
from omegaconf import DictConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from grpo_verl_ext.rewards.learned import LearnedReward, chat_text, judged_text, rule_and_model
from grpo_verl_ext.verl_plugin.config import REWARD_MANAGER, Options, RewardModelOptions, asks_outcome_model
from grpo_verl_ext.verl_plugin.rollout.step_scores import StepScorer

RULE, MODEL = "rule_score", "reward_model_score"
"""Names of both parts in the response's extra info, and so in the validation metrics."""


@register(REWARD_MANAGER)
class RuleAndModelRewardManager(NaiveRewardManager):  # type: ignore[misc]  # verl ships no types
    """score = rule_weight · (the reward function's score) + weight · (the model's score).

    With a ``rule_weight`` of 0 the reward function is not called, and the data need no ground truth. With
    ``step_reward_model`` the function's step rewards are mixed with that model's (`step_scores`); without a
    ``reward_model`` beside it the score is the function's.
    """

    def __init__(self, config: DictConfig, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, *args, **kwargs)
        options = Options.from_config(config.algorithm)
        self._options = options.reward_model or RewardModelOptions()
        self._asks_outcome_model = asks_outcome_model(options, server=config.reward.reward_model.enable)
        steps = options.step_reward_model
        self._steps = None if steps is None else StepScorer(steps)
        path, dtype = self._options.path, self._options.dtype
        self._model = LearnedReward.load(path, dtype=dtype) if path is not None else None
        self._served_name = config.reward.reward_model.model_path

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Score one response by the rule and by the model, and its steps."""
        result = await self._outcome(data)
        if self._steps is None:
            return result
        prompt, ids = self._ids(data[-1:])
        decode = partial(self.tokenizer.decode, skip_special_tokens=True)
        mixed = await self.loop.run_in_executor(
            None, self._steps.mixed, result["reward_extra_info"], decode(prompt), ids, decode
        )
        return result | {"reward_extra_info": mixed}

    async def _outcome(self, data: DataProto) -> dict[str, Any]:
        if not self._asks_outcome_model:
            by_function: dict[str, Any] = await super().run_single(data)
            return by_function
        if not self._options.rule_weight:
            by_model = await self._by_model(data[-1:])
            score = self._options.weight * by_model
            return {"reward_score": score, "reward_extra_info": {MODEL: by_model, "score": score}}
        by_rule, by_model = await asyncio.gather(super().run_single(data), self._by_model(data[-1:]))
        score = rule_and_model(
            by_rule["reward_score"],
            by_model,
            rule_weight=self._options.rule_weight,
            model_weight=self._options.weight,
        )
        extra = by_rule["reward_extra_info"] | {
            RULE: by_rule["reward_score"],
            MODEL: by_model,
            "score": score,
        }
        return {"reward_score": score, "reward_extra_info": extra}

    async def _by_model(self, data: DataProto) -> float:
        prompt, response = self._texts(data)
        chat = [*data[0].non_tensor_batch["raw_prompt"]] if self._options.chat_template else None
        model = self._model
        if model is None:
            return await self._by_server(self._served_text(chat, prompt, response))

        def score() -> float:
            if chat is None:
                return model.scores([(prompt, response)])[0]
            return model.score_of_chat(chat, response)

        return float(await self.loop.run_in_executor(None, score))

    def _served_text(self, chat: list[dict[str, str]] | None, prompt: str, response: str) -> str:
        tokenizer = self.reward_model_tokenizer
        if chat is None:
            return judged_text(prompt, response, tokenizer.eos_token)
        # as in verl's own request: the server's tokenizer adds the beginning of sequence
        return chat_text(chat, response, tokenizer).removeprefix(tokenizer.bos_token or "")

    async def _by_server(self, text: str) -> float:
        # As in verl's own request: the score itself, not its sigmoid.
        asked = {"model": self._served_name, "input": text, "use_activation": False}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
            session.post(f"http://{self.reward_router_address}/classify", json=asked) as answer,
        ):
            answer.raise_for_status()
            return float((await answer.json())["data"][-1]["probs"][-1])

    def _texts(self, data: DataProto) -> tuple[str, str]:
        """Return prompt and response without special tokens, as verl dumps them."""
        return tuple(self.tokenizer.decode(ids, skip_special_tokens=True) for ids in self._ids(data))

    @staticmethod
    def _ids(data: DataProto) -> tuple[list[int], list[int]]:
        row = data[0]
        width = row.batch["prompts"].shape[-1]
        is_token = row.batch["attention_mask"].bool()
        prompt = row.batch["prompts"][is_token[:width]]
        response = row.batch["responses"][is_token[width:]]
        return prompt.tolist(), response.tolist()
