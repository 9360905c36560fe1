"""Bring a warm-started model to the standard of a start: a quarter of its sampled answers is right.

Dividing the logits by a temperature changes how often the most likely token is sampled, and not which it is,
so the greedy accuracy stays. Without it the sampled accuracy differs too much between seeds for comparisons.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM

from grpo_verl_ext.tasks.chain_sum.accuracy import accuracy
from grpo_verl_ext.tasks.chain_sum.prepared import SAMPLED

COLDEST, HOTTEST = 0.4, 2.5
CLOSE_ENOUGH = 0.01
TRIALS = 8


def standardise(model_folder: Path, test_file: Path, *, prompts: int, max_response_tokens: int) -> float:
    """Divide the model's logits so that `SAMPLED` of its answers to test prompts are right.

    The temperature is found by bisection of its logarithm, with the same random numbers in every trial.

    Returns:
        The temperature. Where no temperature between `COLDEST` and `HOTTEST` reaches the share, the end that
        comes nearest; the accuracies in the manifest show it.
    """
    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(TRIALS):
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
        if abs(share - SAMPLED) <= CLOSE_ENOUGH:
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
