"""Rewards from a reward model: a Hugging Face sequence classifier with one output scores each response."""

from __future__ import annotations

import threading
from collections.abc import Sequence
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


def rule_and_model(rule: float, model: float, *, rule_weight: float, model_weight: float) -> float:
    """Return rule_weight · rule + model_weight · model, in reward units."""
    return rule_weight * rule + model_weight * model


class LearnedReward:
    """A reward model in this process; safe to call from several threads."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._one_at_a_time = threading.Lock()

    @classmethod
    def load(cls, folder: Path | str) -> LearnedReward:
        """Load a model folder in single precision, on CPU."""
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
        return cls(model.eval(), AutoTokenizer.from_pretrained(folder))

    @torch.inference_mode()
    def scores(self, samples: Sequence[tuple[str, str]], *, batch_size: int = 32) -> list[float]:
        """Return the score of each (prompt, response): Bradley–Terry, so differences are log-odds."""
        texts = [judged_text(prompt, response, self._tokenizer.eos_token) for prompt, response in samples]
        scores: list[float] = []
        for start in range(0, len(texts), batch_size):
            with self._one_at_a_time:  # a fast tokenizer fails when two threads use it
                batch = self._tokenizer(
                    texts[start : start + batch_size], padding=True, padding_side="right", return_tensors="pt"
                )
                logits = self._model(**batch.to(self._model.device)).logits
            scores += logits.squeeze(-1).tolist()
        return scores

    def accuracy(self, prompts: Sequence[str], better: Sequence[str], worse: Sequence[str]) -> float:
        """Return the share of pairs whose better response has the higher score, 0 … 1; a tie counts as 0."""
        high = self.scores(list(zip(prompts, better, strict=True)))
        low = self.scores(list(zip(prompts, worse, strict=True)))
        return sum(h > w for h, w in zip(high, low, strict=True)) / len(prompts)
