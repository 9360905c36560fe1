"""Measure how often a model's sampled answers are right, and bring it to the standard of a start: a quarter.

Dividing the logits by a temperature changes how often the most likely token is sampled, and not which it is,
so the greedy accuracy stays. Without it the sampled accuracy differs too much between seeds for comparisons.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM

from grpo_verl_ext.rewards.rules import correctness
from grpo_verl_ext.tasks import causal_lm
from grpo_verl_ext.tasks.chain_sum.prepared import MAX_RESPONSE_TOKENS, SAMPLED
from grpo_verl_ext.tasks.folders import read_parquet


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
    rows = read_parquet(Path(parquet))[:n]
    if len(rows) < n:
        raise ValueError(f"n={n} prompts wanted, but {parquet} has {len(rows)}; ask for at most that many")
    rows *= samples
    responses = sample_responses(
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


def sample_responses(
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
    sampled = causal_lm.sample(
        model, tokenizer, chats, temperature=temperature, max_response_tokens=max_response_tokens, seed=seed
    )
    answers: list[str] = tokenizer.batch_decode(
        sampled.tokens[:, sampled.prompt_width :], skip_special_tokens=True
    )
    return answers


COLDEST, HOTTEST = 0.4, 2.5
_CLOSE_ENOUGH = 0.01
_TRIALS = 8


def standardise(model_folder: Path, test_file: Path, *, prompts: int, max_response_tokens: int) -> float:
    """Divide the model's logits so that `SAMPLED` of its answers to test prompts are right.

    The temperature is found by bisection of its logarithm, with the same random numbers in every trial.

    Returns:
        The temperature. Where none between `COLDEST` and `HOTTEST` reaches the share, the end that comes
        nearest; the accuracies in the manifest show it.
    """
    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(_TRIALS):
        middle = (low + high) / 2
        share = accuracy(
            model_folder,
            test_file,
            n=prompts,
            temperature=math.exp(middle),
            max_response_tokens=max_response_tokens,
            seed=1,
            samples=2,
        )
        if abs(share - SAMPLED) <= _CLOSE_ENOUGH:
            break
        low, high = (middle, high) if share > SAMPLED else (low, middle)
    _divide_logits(model_folder, math.exp(middle))
    return math.exp(middle)


def _divide_logits(model_folder: Path, temperature: float) -> None:
    """Scale the last norm, whose output the unembedding multiplies."""
    model: Qwen2ForCausalLM = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    with torch.no_grad():
        model.model.norm.weight /= temperature
    model.save_pretrained(model_folder)
