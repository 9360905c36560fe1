"""Sample responses with transformers, for measurements outside of verl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Sampled:
    """A batch of prompts with one response each; prompts are padded on the left, responses on the right.

    Attributes:
        tokens: (B, P + R) prompt and response.
        prompt_width: P.
        prompt_mask: (B, P) 1 on the prompt's tokens.
    """

    tokens: Tensor
    prompt_width: int
    prompt_mask: Tensor

    def response_mask(self, end: int) -> Tensor:
        """Return (B, R), 1 up to and including the first ``end`` token of each response."""
        ended = self.tokens[:, self.prompt_width :] == end
        return (ended.cumsum(dim=1) - ended.long() == 0).long()


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    chats: list[list[dict[str, str]]],
    *,
    temperature: float,
    max_response_tokens: int,
    seed: int,
) -> Sampled:
    """Generate one response per prompt without changing torch's global random state.

    All chats are one batch; tokens are drawn from the whole distribution (no top-k, no top-p).

    Args:
        tokenizer: must pad on the left.
        temperature: 0 takes the most likely token every time.
    """
    batch = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    how: dict[str, Any] = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if temperature > 0
        else {"do_sample": False}
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokens = model.generate(**batch, **how, max_new_tokens=max_response_tokens)
    return Sampled(tokens, batch["input_ids"].shape[1], batch["attention_mask"])
