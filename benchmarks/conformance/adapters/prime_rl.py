"""prime-rl, from a checkout: ``compute_loss`` with its default loss, DPPO with a KL term."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist

from benchmarks.conformance.adapter import Row, StandIn, Task
from benchmarks.conformance.adapters.stubs import bare, stub
from benchmarks.conformance.adapters.torch_ranks import MicroBatch, accumulated, start_ranks
from benchmarks.conformance.batch import CUTS, Floats

sys.path.insert(0, os.environ["CONFORMANCE_CHECKOUT"] + "/src")
bare("prime_rl")  # its other packages load models and wandb, and need Python 3.12
for package in ("trainer", "trainer.rl"):
    bare(f"prime_rl.{package}")
for package in ("configs", "utils"):
    stub(f"prime_rl.{package}", __path__=[])
stub("prime_rl.utils.utils", import_object=None)
configurations = ("CustomLossConfig", "DefaultLossConfig", "IPOLossConfig", "LossConfig")
stub("prime_rl.configs.trainer", **{name: type(name, (), {}) for name in configurations})

from prime_rl.trainer.rl.loss import compute_loss, setup_rl_loss_fn  # noqa: E402

TITLE = "prime-rl"
BESIDE = ("torch",)
SOURCES = ("src/prime_rl/trainer/rl/loss.py", "src/prime_rl/trainer/rl/train.py")
HAS_K3_LOSS = False
_TRAIN = "src/prime_rl/trainer/rl/train.py"
STAND_INS = (
    StandIn(
        _TRAIN,
        "rl_scale, ce_scale, ref_kl_scale = (max(scale, 1) for scale in global_scales.tolist())",
        "tokens of the mini-batch, summed over ranks by gloo",
    ),
    StandIn(
        _TRAIN,
        "scale_gradients_(None, model, parallel_dims.fsdp_gradient_divide_factor)",
        "the same, by the number of ranks",
    ),
    StandIn(_TRAIN, "loss.backward()", "loss.backward()"),
)
CUTS = tuple(CUTS)
NO_MODE: dict[str, str] = {}
ROWS = (
    Row("dppo", "dppo_mask_low=dppo_mask_high=0.15, kl_tau=0", {"kl_tau": 0.0}, "a token mean"),
    Row(
        "dppo",
        "dppo_mask_low=dppo_mask_high=0.15, kl_tau=1e-3 (default)",
        {"kl_tau": 1e-3},
        "a token mean, and the term kl_tau·(log ρ)² that it has from Kimi K2.5, arXiv 2602.02276",
    ),
)


def gradient(task: Task) -> Floats:
    start_ranks()
    loss_fn = setup_rl_loss_fn(
        SimpleNamespace(
            dppo_mask_low=task.clip_low, dppo_mask_high=task.clip_high, adv_tau=1.0, **task.row.options
        )
    )

    def run(parts: list[MicroBatch]) -> None:
        num_tokens = sum(part.mask.sum() for part in parts)
        dist.all_reduce(num_tokens)
        for part in parts:
            log_prob, old_log_prob, advantages, mask = _packed(part)
            loss, _ = compute_loss(
                trainer_logprobs=log_prob,
                inference_logprobs=old_log_prob,
                ref_logprobs=None,
                advantages=advantages,
                loss_mask=[row.bool() for row in mask],
                rl_weights=None,
                ce_weights=None,
                ref_kl_weights=None,
                rl_loss_fn=loss_fn,
                rl_scale=int(num_tokens),
                ce_scale=1,
                ref_kl_scale=1,
            )
            (loss * task.world_size).backward()

    return accumulated(task, run, trim=True)


def _packed(part: MicroBatch) -> list[list[torch.Tensor]]:
    """Split each value into responses without padding, as a packed micro-batch is."""
    values = (part.log_prob, part.old_log_prob, part.advantages, part.mask)
    return [[row[:length] for row, length in zip(value, part.lengths, strict=True)] for value in values]
