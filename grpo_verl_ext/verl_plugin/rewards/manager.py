"""The reward manager ``rule_and_model``: verl's ``naive`` plus reward models of responses and of steps."""

import asyncio
import math
from functools import partial
from typing import Any

from omegaconf import DictConfig
from transformers import AutoTokenizer
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from grpo_verl_ext.rewards.learned import weighted
from grpo_verl_ext.utils.keys import SECTION
from grpo_verl_ext.verl_plugin.config import (
    REWARD_MANAGER,
    ClassifierOptions,
    Options,
    RewardModelOptions,
    asks_reward_model,
)
from grpo_verl_ext.verl_plugin.rewards.response_scores import Judged, Score, loaded, served
from grpo_verl_ext.verl_plugin.rewards.server import RewardServer
from grpo_verl_ext.verl_plugin.steps.rollout import StepScorer
from grpo_verl_ext.verl_plugin.wire import report_failure

RULE, MODEL = "rule_score", "reward_model_score"
"""Names of the parts in extra info and metrics; those of ``reward_models`` are `MODEL`.<name>."""


@register(REWARD_MANAGER)
class RuleAndModelRewardManager(NaiveRewardManager):  # type: ignore[misc]  # verl ships no types
    """score = rule_weight · (the reward function's score) + Σ weight · (a model's score).

    The models are that of the section ``reward_model`` and those of ``reward_models``. With a ``rule_weight``
    of 0 the reward function is not called, and the data need no ground truth. With ``step_reward_model`` the
    function's step rewards are mixed with that model's (`step_scores`); without another model beside it the
    score is the function's.
    """

    def __init__(self, config: DictConfig, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, *args, **kwargs)
        options = Options.from_config(config.algorithm)
        first, steps = options.reward_model or RewardModelOptions(), options.step_reward_model
        self._steps = None if steps is None else StepScorer(steps)
        self._weights = {RULE: first.rule_weight}
        self._models: dict[str, Score] = {}
        if asks_reward_model(options, server=config.reward.reward_model.enable):
            self._add(MODEL, first.weight, self._first_model(first, config))
        for name, model in (options.reward_models or {}).items():
            self._add(f"{MODEL}.{name}", model.weight, _of_path(model, f"{SECTION}.reward_models.{name}"))

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Score one response by the rule and by the models, and its steps.

        verl logs an error and trains on the other responses to the prompt; the trainer ends with it instead.
        """
        try:
            return await self._scored(data)
        except Exception as error:
            report_failure(error)
            raise

    async def _scored(self, data: DataProto) -> dict[str, Any]:
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
        if not self._models:
            by_function: dict[str, Any] = await super().run_single(data)
            return by_function
        if not self._weights[RULE]:
            return self._together({}, await self._by_models(data[-1:]))
        by_rule, by_models = await asyncio.gather(super().run_single(data), self._by_models(data[-1:]))
        return self._together(by_rule["reward_extra_info"], {RULE: by_rule["reward_score"], **by_models})

    def _together(self, reported: dict[str, Any], scores: dict[str, float]) -> dict[str, Any]:
        score = weighted(scores, self._weights)
        return {"reward_score": score, "reward_extra_info": {**reported, **scores, "score": score}}

    def _add(self, name: str, weight: float, model: Score) -> None:
        self._weights[name], self._models[name] = weight, model

    def _first_model(self, options: RewardModelOptions, config: DictConfig) -> Score:
        section = f"{SECTION}.reward_model"
        if options.path is not None:
            return _of_path(options, section)
        return served(
            RewardServer(f"http://{self.reward_router_address}", options, section),
            name=config.reward.reward_model.model_path,
            tokenizer=self.reward_model_tokenizer,
        )

    async def _by_models(self, data: DataProto) -> dict[str, float]:
        prompt, response = (self.tokenizer.decode(ids, skip_special_tokens=True) for ids in self._ids(data))
        judged = Judged(data[0].non_tensor_batch.get("raw_prompt"), prompt, response)
        scores = await asyncio.gather(*(model(judged) for model in self._models.values()))
        by_name = dict(zip(self._models, scores, strict=True))
        for name, score in by_name.items():
            if not math.isfinite(score):
                raise ValueError(f"{name} of a response is {score}; valid is a finite number")
        return by_name

    @staticmethod
    def _ids(data: DataProto) -> tuple[list[int], list[int]]:
        """Return the tokens of prompt and response, without padding.

        An agent loop says how many there are, and pads the outputs of a session at the end, prompts and
        responses apart, so that their mask is not that of both in a row.
        """
        row = data[0]
        if "response_len" in row.non_tensor_batch:
            counts = (int(row.non_tensor_batch[name]) for name in ("prompt_len", "response_len"))
            texts = (row.batch["prompts"], row.batch["responses"])
            prompt, response = (ids[:count].tolist() for ids, count in zip(texts, counts, strict=True))
            return prompt, response
        width = row.batch["prompts"].shape[-1]
        is_token = row.batch["attention_mask"].bool()
        prompt = row.batch["prompts"][is_token[:width]]
        response = row.batch["responses"][is_token[width:]]
        return prompt.tolist(), response.tolist()


def _of_path(options: ClassifierOptions, section: str) -> Score:
    """Load the model at ``path``, or ask the server that has it."""
    if options.url is None or options.path is None:
        return loaded(options)
    tokenizer = AutoTokenizer.from_pretrained(options.path)
    return served(RewardServer(options.url, options, section), name=options.path, tokenizer=tokenizer)
