"""Measure time and peak memory of our estimators and losses, of verl's, and of the least possible work.

python benchmarks/algorithms.py [--device cpu|cuda] [--repeat 7] [--threads 1]

Both are called as verl calls them: an estimator with padded fp32 rewards, an int64 mask and one string id per
row; a loss with (B, T) log-probs and its metrics, then the backward pass. Times are the best of the repeats,
taken in turns. "Memory" is the peak of a call beyond its arguments, gradient included.

A statistic of the mini-batch is given, as the worker would, and its cost is not counted (see gvpo_update.py).
The floor of an estimator reads the rewards and writes the advantages once, and does not read the mask.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from common import MIB, parser
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.workers.config import ActorConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms.gvpo import GroupRows
from grpo_verl_ext.proof.batch import ROWS_PER_PROMPT
from grpo_verl_ext.proof.invariance import OUR_CASES, Case, training_of
from grpo_verl_ext.verl_plugin import wire

SHAPES = ((1024, 1024), (4096, 1024), (4096, 4096))

Call = Callable[[], object]
Measured = dict[str, tuple[float, int]]
"""Name of a function → its seconds, and the bytes of its peak."""


def floor(token_level_rewards: Tensor, response_mask: Tensor, **_: object) -> Tensor:
    """Do one read of the rewards and one write of the advantages."""
    return token_level_rewards.sum(dim=-1, keepdim=True).expand(response_mask.shape).contiguous()


def lengths_mask(responses: int, tokens: int, device: str) -> Tensor:
    """Return a mask, (B, T) int64, with lengths spread evenly from 1 to T."""
    lengths = torch.linspace(1, tokens, responses).round().int()[torch.randperm(responses)]
    return (torch.arange(tokens) < lengths.unsqueeze(-1)).long().to(device)


def estimator_calls(responses: int, tokens: int, device: str) -> dict[str, Call]:
    mask = lengths_mask(responses, tokens, device)
    drawn = torch.randint(0, 3, (responses, 1)).float().to(device)
    rewards = torch.zeros(responses, tokens, device=device).scatter_(1, mask.sum(-1, keepdim=True) - 1, drawn)
    index = np.array([f"prompt-{row // ROWS_PER_PROMPT}" for row in range(responses)], dtype=object)
    functions = {"floor": floor, **{name: get_adv_estimator_fn(name) for name in catalogue.ESTIMATORS}}
    # They read rewards of steps, or rewards by name: not the dense table of the others.
    del functions["grpo_process"], functions["gdpo_outcome"]
    functions |= {f"verl {name}": get_adv_estimator_fn(name) for name in ("grpo", "grpo_vectorized")}
    arguments = {"token_level_rewards": rewards, "response_mask": mask, "index": index}
    return {name: partial(function, **arguments) for name, function in functions.items()}


def loss_calls(responses: int, tokens: int, device: str) -> dict[str, Call]:
    mask = lengths_mask(responses, tokens, device).bool()
    old = -torch.rand(responses, tokens, device=device)
    log_prob = (old + 0.2 * torch.randn_like(old)).requires_grad_()
    advantages = torch.where(mask, torch.randn(responses, 1, device=device), 0)
    arguments = {"old_log_prob": old, "log_prob": log_prob, "advantages": advantages, "response_mask": mask}
    prompts = torch.arange(responses, device=device) // ROWS_PER_PROMPT
    size, zeros = torch.full_like(prompts, ROWS_PER_PROMPT), torch.zeros(responses, device=device)
    groups = GroupRows(prompts, size, drift=zeros, old_deviation=zeros, anchor_deviation=zeros)
    inputs = {name: torch.zeros_like(old) for name in ("statistic", "ref_log_prob", "rollout_log_prob")}

    def call(loss_fn: Callable[..., tuple[Tensor, dict[str, Any]]], config: ActorConfig) -> None:
        own = {"loss_agg_mode": config.loss_agg_mode, "config": config, "rollout_is_weights": None}
        with wire.passing(groups=groups, inputs=inputs):
            loss, metrics = loss_fn(**arguments, **own)
        torch.autograd.grad(loss, log_prob)
        _ = {name: float(value) for name, value in metrics.items()}  # as verl's Metric does

    cases = [Case("verl vanilla", "vanilla", "token-mean"), *OUR_CASES]
    calls: dict[str, Call] = {}
    for case in cases:
        config = training_of(case).actor
        config.global_batch_info.update(dp_size=1, batch_num_tokens=int(mask.sum()))
        config.global_batch_info["global_batch_size"] = responses
        calls[case.name] = partial(call, get_policy_loss_fn(case.loss_mode), config)
    return calls


def measure(calls: dict[str, Call], device: str, repeat: int) -> Measured:
    """Run every call once to warm up, ``repeat`` times in turns for time, and once for memory."""
    for call in calls.values():
        call()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeat):
        for name, call in calls.items():
            best[name] = min(best[name], seconds(call, device))
    return {name: (best[name], peak_bytes(call, device)) for name, call in calls.items()}


def seconds(call: Call, device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - started


def peak_bytes(call: Call, device: str) -> int:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    # torch's CPU allocator does not record a peak, but its profiler sees every allocation and release.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(max(np.cumsum([change for _, change in changes])))


def table(kind: str, baseline: str, options: argparse.Namespace) -> None:
    """Print one row per function and shape; ratios are to ``baseline``."""
    print(f"\n| {kind} | B × T | ms | × {baseline} | peak MiB | × {baseline} |\n|---|---|---|---|---|---|")
    calls = {"estimator": estimator_calls, "loss": loss_calls}[kind]
    for responses, tokens in SHAPES:
        found = measure(calls(responses, tokens, options.device), options.device, options.repeat)
        least, smallest = found[baseline]
        for name, (own, peak) in found.items():
            times = f"{1e3 * own:.1f} | {own / least:.2f}"
            sizes = f"{peak / MIB:.0f} | {peak / smallest:.2f}"
            print(f"| {name} | {responses} × {tokens} | {times} | {sizes} |", flush=True)


def main() -> None:
    arguments = parser(__doc__, repeat=7, threads=torch.get_num_threads())
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    processor = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(f"{processor}, {os.cpu_count()} cores, {options.threads} threads, torch {torch.__version__}")
    for kind, baseline in (("estimator", "floor"), ("loss", "verl vanilla")):
        table(kind, baseline, options)


if __name__ == "__main__":
    main()
