"""Measure how often a model's sampled answers are right."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_verl_ext.rewards.rules import correctness
from grpo_verl_ext.tasks.chain_sum import problems
from grpo_verl_ext.tasks.chain_sum.prepared import MAX_RESPONSE_TOKENS
from grpo_verl_ext.utils import generate as sampling


def accuracy(
    model_folder: Path | str,
    parquet: Path | str,
    *,
    n: int = 512,
    temperature: float = 1.0,
    max_response_tokens: int = MAX_RESPONSE_TOKENS,
    seed: int = 0,
    samples: int = 1,
) -> float:
    """Return the share of right answers in ``samples`` responses to each of the first ``n`` prompts, 0 … 1.

    With one sample it is verl's validation metric ``acc`` under the task's preset; its standard error is
    √(a(1−a)/n), 0.02 at n = 512.

    Args:
        model_folder: a Hugging Face model folder with its tokenizer.
        parquet: a data file in verl's format.
        temperature: 0 takes the most likely token every time.

    Raises:
        ValueError: the file has fewer than ``n`` rows.
    """
    rows = problems.read_rows(Path(parquet))[:n]
    if len(rows) < n:
        raise ValueError(f"n={n} prompts wanted, but {parquet} has {len(rows)}; ask for at most that many")
    rows *= samples
    responses = sample(
        model_folder,
        [row["prompt"] for row in rows],
        temperature=temperature,
        max_response_tokens=max_response_tokens,
        seed=seed,
    )
    right = [
        correctness(text, row["reward_model"]["ground_truth"]) > 0
        for text, row in zip(responses, rows, strict=True)
    ]
    return sum(right) / len(right)


def sample(
    model_folder: Path | str,
    chats: list[list[dict[str, str]]],
    *,
    temperature: float,
    max_response_tokens: int,
    seed: int,
) -> list[str]:
    """Generate one response per chat, in one batch, with special tokens stripped as verl strips them."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    sampled = sampling.sample(
        model, tokenizer, chats, temperature=temperature, max_response_tokens=max_response_tokens, seed=seed
    )
    answers: list[str] = tokenizer.batch_decode(
        sampled.tokens[:, sampled.prompt_width :], skip_special_tokens=True
    )
    return answers
