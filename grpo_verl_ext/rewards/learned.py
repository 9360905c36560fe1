"""Scores by a classifier of transformers: one for a response, or P(right) for each of its steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from grpo_verl_ext.rewards.steps import pieces


@dataclass(frozen=True)
class LearnedReward:
    """A classifier with its tokenizer; one thread at a time may use it."""

    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerBase

    @classmethod
    def load(cls, folder: Path | str, *, of_steps: bool = False, dtype: str = "float32") -> "LearnedReward":
        """Load a model on CPU, with a new head if it has none; ``dtype`` ``auto``: its files' precision."""
        architecture, outputs = transformers.AutoModelForSequenceClassification, 1
        if of_steps:
            architecture, outputs = transformers.AutoModelForTokenClassification, 2
        model = architecture.from_pretrained(folder, num_labels=outputs, dtype=dtype)
        return cls(model.eval(), transformers.AutoTokenizer.from_pretrained(folder))

    def score(self, prompt: str | Sequence[Mapping[str, str]], response: str) -> float:
        """Return the score of a response: Bradley–Terry, so differences are log-odds.

        The model reads prompt, response and its end-of-sequence token, as TRL's ``RewardTrainer`` makes them
        of ``prompt`` and ``chosen``. Of a prompt that is a chat it reads the model's own chat template.
        """
        if isinstance(prompt, str):
            text, end = prompt + response, self.tokenizer.eos_token or ""
            ids = self.tokenizer(text if text.endswith(end) else text + end)["input_ids"]
        else:
            chat = [*prompt, {"role": "assistant", "content": response}]
            ids = self.tokenizer.apply_chat_template(chat, return_dict=False)
        return self._logits(ids).item()

    def scores_of_steps(self, prompt: str, response: str, ends: Sequence[int]) -> list[float]:
        """Return for each step P(right | prompt, response up to the step's end), 0 … 1.

        Its end is the number of characters of the response up to it; ends may have any order. Class 1 is
        right, as in TRL's ``PRMTrainer``. One forward pass for all steps: with causal attention, what follows
        a step does not change its score.

        Prompt and steps are tokenized alone, so that no token spans two steps, as by TRL with an empty
        ``step_separator``. A step is scored at its last token.
        """
        if not ends:
            return []
        begin, last = self.tokenizer.bos_token_id, dict[int, int]()
        ids = [] if begin is None else [begin]
        ids += self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        for end, step in zip(sorted({*ends}), pieces(response, ends), strict=True):
            ids += self.tokenizer(step, add_special_tokens=False)["input_ids"]
            last[end] = len(ids) - 1
        scores = self._logits(ids)[[last[end] for end in ends]]
        right: list[float] = scores.softmax(-1)[:, 1].tolist()
        return right

    @torch.inference_mode()
    def _logits(self, ids: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self.model(torch.tensor([ids], device=self.model.device)).logits
        return logits[0].float()
