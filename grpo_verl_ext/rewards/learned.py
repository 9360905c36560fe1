"""Rewards from reward models.

A sequence classifier of Hugging Face's with one output scores each response; a token classifier, a process
reward model, is read at the last token of each step.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo_verl_ext.rewards.steps import pieces


def judged_text(prompt: str, response: str, end: str) -> str:
    """Return the text that the reward model reads: prompt, response, then ``end``, the end-of-sequence token.

    ``end`` is empty for a tokenizer without such a token. Prompt and response are without special tokens.
    TRL's ``RewardTrainer`` makes the same text of ``prompt`` and ``chosen`` or ``rejected``.
    """
    text = prompt + response
    return text if text.endswith(end) else text + end


def chat_text(
    messages: Sequence[Mapping[str, str]], response: str, tokenizer: PreTrainedTokenizerBase
) -> str:
    """Return the chat with its response in the reward model's own template, special tokens included."""
    chat = [*messages, {"role": "assistant", "content": response}]
    text: str = tokenizer.apply_chat_template(chat, tokenize=False)
    return text


def weighted(scores: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return Σ weight · score over the names, in reward units; every score has a weight."""
    return math.fsum(weights[name] * score for name, score in scores.items())


_AnyReward = TypeVar("_AnyReward", bound="_Learned")


class _Learned:
    """A reward model in this process; safe to call from several threads."""

    _architecture: ClassVar[Any]

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._one_at_a_time = threading.Lock()  # a fast tokenizer fails when two threads use it

    @classmethod
    def load(cls: type[_AnyReward], folder: Path | str, *, dtype: str = "float32") -> _AnyReward:
        """Load a model folder on CPU, in single precision or, with ``auto``, in that of its files."""
        model = cls._architecture.from_pretrained(folder, dtype=dtype)
        return cls(model.eval(), AutoTokenizer.from_pretrained(folder))


class LearnedReward(_Learned):
    """A reward model that scores responses."""

    _architecture = AutoModelForSequenceClassification

    def scores(self, samples: Sequence[tuple[str, str]], *, batch_size: int = 32) -> list[float]:
        """Return the score of each (prompt, response): Bradley–Terry, so differences are log-odds."""
        end = self._tokenizer.eos_token or ""
        texts = [judged_text(prompt, response, end) for prompt, response in samples]
        return self._scores_of(texts, batch_size=batch_size, add_special_tokens=True)

    def score_of_chat(self, messages: Sequence[Mapping[str, str]], response: str) -> float:
        """Return the score of a response to a chat, in the model's own chat template."""
        text = chat_text(messages, response, self._tokenizer)
        return self._scores_of([text], batch_size=1, add_special_tokens=False)[0]

    @torch.inference_mode()
    def _scores_of(self, texts: Sequence[str], *, batch_size: int, add_special_tokens: bool) -> list[float]:
        scores: list[float] = []
        for start in range(0, len(texts), batch_size):
            with self._one_at_a_time:
                batch = self._tokenizer(
                    [*texts[start : start + batch_size]],
                    padding=len(texts) > 1,  # a tokenizer may have no token for it
                    padding_side="right",
                    add_special_tokens=add_special_tokens,
                    return_tensors="pt",
                )
                logits = self._model(**batch.to(self._model.device)).logits
            scores += logits.squeeze(-1).float().tolist()
        return scores

    def accuracy(self, prompts: Sequence[str], better: Sequence[str], worse: Sequence[str]) -> float:
        """Return the share of pairs whose better response has the higher score, 0 … 1; a tie counts as 0."""
        high = self.scores(list(zip(prompts, better, strict=True)))
        low = self.scores(list(zip(prompts, worse, strict=True)))
        return sum(h > w for h, w in zip(high, low, strict=True)) / len(prompts)


OUTPUTS = 2
"""Classes of the model: 0, the step is wrong; 1, it is right, as TRL's ``PRMTrainer`` numbers them."""


def step_tokens(
    prompt: str, steps: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[int]]:
    """Return the tokens that the model reads, and the position of each step's last token among them.

    Beginning of sequence (where the tokenizer has one), prompt, then the steps. Each is tokenized alone, so
    that no token spans two steps. TRL's ``PRMTrainer`` makes the same tokens with an empty
    ``step_separator``.
    """
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    ids = [*begin, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    last: list[int] = []
    for step in steps:
        ids += tokenizer(step, add_special_tokens=False)["input_ids"]
        last.append(len(ids) - 1)
    return ids, last


class LearnedStepReward(_Learned):
    """A process reward model that scores the steps of a response."""

    _architecture = AutoModelForTokenClassification

    def scores(self, prompt: str, response: str, ends: Sequence[int]) -> list[float]:
        """Return for each step P(right | prompt, response up to the step's end), 0 … 1.

        One forward pass for all steps: with causal attention, what follows a step does not change its score.

        Args:
            ends: for each step the number of characters of the response up to its end, in any order.
        """
        if not ends:
            return []
        of_piece = self.scores_of_pieces(prompt, pieces(response, ends))
        of_end = dict(zip(sorted({*ends}), of_piece, strict=True))
        return [of_end[end] for end in ends]

    @torch.inference_mode()
    def scores_of_pieces(self, prompt: str, steps: Sequence[str]) -> list[float]:
        """Return the same for steps that follow each other without a gap."""
        with self._one_at_a_time:
            ids, last = step_tokens(prompt, steps, self._tokenizer)
            logits = self._model(torch.tensor([ids], device=self._model.device)).logits[0, last]
        right: list[float] = logits.float().softmax(-1)[:, 1].tolist()
        return right
