"""Scores of steps from a process reward model: a token classifier that is read at each step's last token."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo_verl_ext.rewards.step_ends import pieces

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


class LearnedStepReward:
    """A process reward model in this process; safe to call from several threads."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._one_at_a_time = threading.Lock()

    @classmethod
    def load(cls, folder: Path | str, *, dtype: str = "float32") -> LearnedStepReward:
        """Load a model folder on CPU, in single precision or, with ``auto``, in that of its files."""
        model = AutoModelForTokenClassification.from_pretrained(folder, dtype=dtype)
        return cls(model.eval(), AutoTokenizer.from_pretrained(folder))

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
        with self._one_at_a_time:  # a fast tokenizer fails when two threads use it
            ids, last = step_tokens(prompt, steps, self._tokenizer)
            logits = self._model(torch.tensor([ids], device=self._model.device)).logits[0, last]
        right: list[float] = logits.float().softmax(-1)[:, 1].tolist()
        return right
