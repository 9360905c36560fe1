"""Measure the KL from a policy to the first one, in a process of its own: ``python -m … JOB.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_verl_ext.algorithms.kl import exact
from grpo_verl_ext.tasks.causal_lm import sample
from grpo_verl_ext.utils.end_tokens import end_tokens
from grpo_verl_ext.utils.files import write_whole


@torch.no_grad()
def measure_kl(
    *,
    policy: str,
    first: str,
    chats: list[list[dict[str, str]]],
    batch_size: int,
    max_response_tokens: int,
    template: dict[str, Any],
    seed: int,
    result: str,
) -> None:
    """Sample a response to each chat from ``policy``, and write KL(policy ‖ first) on these responses.

    Args:
        template: what the training passes to the chat template.
        result: path of the JSON to write: ``{"kl_to_first": nats per response, "tokens": response tokens}``.
    """
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    tokenizer = AutoTokenizer.from_pretrained(policy, padding_side="left")
    load = AutoModelForCausalLM.from_pretrained
    models = [load(path, dtype="auto").to(device).eval() for path in (policy, first)]
    nats, tokens = 0.0, 0
    for start in range(0, len(chats), batch_size):
        sampled = sample(
            models[0],
            tokenizer,
            chats[start : start + batch_size],
            temperature=1.0,
            max_response_tokens=max_response_tokens,
            seed=seed + start,
            template=template,
        )
        mask = sampled.response_mask(end_tokens(tokenizer, models[0].generation_config))
        attended = torch.cat([sampled.prompt_mask, mask], dim=1)
        for row in range(len(mask)):  # the logits of a whole batch are several times as large as the models
            only = slice(row, row + 1)
            inputs = {
                "input_ids": sampled.tokens[only],
                "attention_mask": attended[only],
                "position_ids": (attended[only].cumsum(dim=1) - 1).clamp(min=0),
            }
            p, q = (model(**inputs).logits[:, sampled.prompt_width - 1 : -1] for model in models)
            nats += float(exact(p, q, mask[only], temperature=1.0).sum())
        tokens += int(mask.sum())
    write_whole(Path(result), json.dumps({"kl_to_first": nats / len(chats), "tokens": tokens}) + "\n")


if __name__ == "__main__":
    measure_kl(**json.loads(Path(sys.argv[1]).read_text()))
