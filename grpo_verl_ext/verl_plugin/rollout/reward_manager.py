"""The reward manager ``rule_and_model``: verl's ``naive``, plus the score of a reward model."""

import asyncio
from typing import Any

import aiohttp
from omegaconf import DictConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from grpo_verl_ext.rewards.learned import LearnedReward, judged_text, rule_and_model
from grpo_verl_ext.verl_plugin.config import REWARD_MANAGER, Options, RewardModelOptions

RULE, MODEL = "rule_score", "reward_model_score"
"""Names of both parts in the response's extra info, and so in the validation metrics."""


@register(REWARD_MANAGER)
class RuleAndModelRewardManager(NaiveRewardManager):  # type: ignore[misc]  # verl ships no types
    """score = rule_weight · (the reward function's score) + weight · (the model's score)."""

    def __init__(self, config: DictConfig, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, *args, **kwargs)
        self._options = Options.from_config(config.algorithm).reward_model or RewardModelOptions()
        self._model = LearnedReward.load(self._options.path) if self._options.path is not None else None
        self._served_name = config.reward.reward_model.model_path

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Score one response by the rule and by the model."""
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
        if self._model is None:
            return await self._by_server(prompt, response)
        scores = await self.loop.run_in_executor(None, self._model.scores, [(prompt, response)])
        return float(scores[0])

    async def _by_server(self, prompt: str, response: str) -> float:
        text = judged_text(prompt, response, self.reward_model_tokenizer.eos_token)
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
        row = data[0]
        width = row.batch["prompts"].shape[-1]
        is_token = row.batch["attention_mask"].bool()
        prompt = row.batch["prompts"][is_token[:width]]
        response = row.batch["responses"][is_token[width:]]
        return tuple(self.tokenizer.decode(ids, skip_special_tokens=True) for ids in (prompt, response))
