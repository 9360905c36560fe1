"""Rewards from a reward model: a Hugging Face sequence classifier with one output scores each response."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)


def judged_text(prompt: str, response: str, end: str) -> str:
    """Return the text that the reward model reads: prompt, response, then ``end``, the end-of-sequence token.

    Prompt and response are without special tokens. TRL's ``RewardTrainer`` makes the same text of ``prompt``
    and ``chosen`` or ``rejected``.
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


class LearnedReward:
    """A reward model in this process; safe to call from several threads."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._one_at_a_time = threading.Lock()

    @classmethod
    def load(cls, folder: Path | str, *, dtype: str = "float32") -> LearnedReward:
        """Load a model folder on CPU, in single precision or, with ``auto``, in that of its files."""
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype)
        return cls(model.eval(), AutoTokenizer.from_pretrained(folder))

    def scores(self, samples: Sequence[tuple[str, str]], *, batch_size: int = 32) -> list[float]:
        """Return the score of each (prompt, response): Bradley–Terry, so differences are log-odds."""
        end = self._tokenizer.eos_token
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
            with self._one_at_a_time:  # a fast tokenizer fails when two threads use it
                batch = self._tokenizer(
                    [*texts[start : start + batch_size]],
                    padding=True,
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
