"""Measure the KL from a policy to the first one, in a process of its own: ``python -m … JOB.json``."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from grpo_verl_ext.algorithms.kl import exact
from grpo_verl_ext.tasks.causal_lm import sample
from grpo_verl_ext.utils.end_tokens import end_tokens
from grpo_verl_ext.utils.files import write_whole


@dataclass(frozen=True)
class DivergenceJob:
    """The content of the job file that the process reads.

    Attributes:
        template: what the training passes to the chat template.
        result: path of the JSON to write: ``{"kl_to_first": nats per response, "tokens": response tokens}``.
    """

    policy: str
    first: str
    chats: list[list[dict[str, str]]]
    batch_size: int
    temperature: float
    max_response_tokens: int
    template: dict[str, Any]
    seed: int
    result: str


def measure_kl(job: DivergenceJob) -> None:
    """Sample a response to each prompt from ``policy``, and write the KL to ``first`` on these responses."""
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    tokenizer = AutoTokenizer.from_pretrained(job.policy, padding_side="left")
    policy, first = (
        AutoModelForCausalLM.from_pretrained(path, dtype="auto").to(device).eval()
        for path in (job.policy, job.first)
    )
    nats, tokens = 0.0, 0
    for start in range(0, len(job.chats), job.batch_size):
        chats = job.chats[start : start + job.batch_size]
        kl, mask = divergence(policy, first, tokenizer, chats, job, seed=job.seed + start)
        nats, tokens = nats + float(kl.sum()), tokens + int(mask.sum())
    write_whole(Path(job.result), json.dumps({"kl_to_first": nats / len(job.chats), "tokens": tokens}) + "\n")


@torch.no_grad()
def divergence(
    policy: PreTrainedModel,
    first: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    chats: list[list[dict[str, str]]],
    job: DivergenceJob,
    *,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Return KL(policy ‖ first) in nats at each token of sampled responses, and their mask; (B, R) each.

    The KL is 0 after a response's end.
    """
    sampled = sample(
        policy,
        tokenizer,
        chats,
        temperature=job.temperature,
        max_response_tokens=job.max_response_tokens,
        seed=seed,
        template=job.template,
    )
    mask = sampled.response_mask(end_tokens(tokenizer, policy.generation_config))
    attended = torch.cat([sampled.prompt_mask, mask], dim=1)
    predicting = slice(sampled.prompt_width - 1, -1)
    found = []
    # One response at a time: the logits of a batch are several times as large as the models.
    for row in range(len(chats)):
        only = slice(row, row + 1)
        logits, first_logits = (
            model(
                input_ids=sampled.tokens[only],
                attention_mask=attended[only],
                position_ids=(attended[only].cumsum(dim=1) - 1).clamp(min=0),
            ).logits[:, predicting]
            for model in (policy, first)
        )
        found.append(exact(logits, first_logits, mask[only], temperature=job.temperature))
    return torch.cat(found), mask


if __name__ == "__main__":
    measure_kl(DivergenceJob(**json.loads(Path(sys.argv[1]).read_text())))
