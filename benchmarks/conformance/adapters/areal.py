"""AReaL: ``grpo_loss_fn`` of its actor, scaled with its engine's ``compute_total_loss_weight``."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist

from benchmarks.conformance.adapter import Row, StandIn, Task
from benchmarks.conformance.adapters.stubs import bare, stub
from benchmarks.conformance.adapters.torch_ranks import MicroBatch, accumulated, start_ranks
from benchmarks.conformance.batch import CUTS, Floats

bare("areal", "areal.infra", "areal.trainer", "areal.trainer.ppo")  # theirs import all of AReaL
sys.modules["areal.infra"].TrainController = object  # type: ignore[attr-defined]
stub("areal.infra.rpc", __path__=[])
stub("areal.infra.rpc.serialization", serialize_value=None)
for package in ("", ".training_service", ".training_service.controller"):
    stub("areal.experimental" + package, __path__=[])
stub("areal.experimental.training_service.controller.controller", GatewayTrainController=object)

from areal.engine.core.train_engine import compute_total_loss_weight  # noqa: E402
from areal.trainer.ppo.actor import grpo_loss_fn  # noqa: E402

TITLE = "AReaL"
DISTRIBUTION = "areal"
BESIDE = ("torch",)
SOURCES = (
    "areal/trainer/ppo/actor.py",
    "areal/utils/functional/functional.py",
    "areal/engine/core/train_engine.py",
    "areal/engine/fsdp_engine.py",
)
HAS_K3_LOSS = False
STAND_INS = (
    StandIn(
        "areal/trainer/ppo/actor.py", 'loss_weight_fn=lambda x: x["loss_mask"].count_nonzero(),', "the same"
    ),
    StandIn(
        "areal/engine/fsdp_engine.py",
        "loss_scale = local_weight / total_loss_weight * loss_multiplier",
        "the same, with the number of ranks as the multiplier",
    ),
    StandIn("areal/engine/fsdp_engine.py", "loss.backward()", "loss.backward()"),
)
CUTS = tuple(CUTS)
NO_MODE = {"grpo": "its loss is a token mean", "cispo": "no such loss"}
ROWS = (
    Row("dapo", "eps_clip_higher=0.28", {}, "a token mean is its only reduction"),
    Row("dr_grpo", "adv_norm without std", {}, "the same token mean; no mode divides by a constant"),
    Row(
        "gspo",
        "importance_sampling_level=sequence",
        {"importance_sampling_level": "sequence"},
        "a token mean, where the paper's is over responses",
    ),
)


def gradient(task: Task) -> Floats:
    start_ranks()

    def run(parts: list[MicroBatch]) -> None:
        data = [_packed(part) for part in parts]
        weights = compute_total_loss_weight(SimpleNamespace(mbs=data), _loss_weight, dist.group.WORLD)
        for part, inputs in zip(parts, data, strict=True):
            if _loss_weight(inputs) > 0:
                log_prob = part.log_prob[part.present.bool()].float()
                loss = grpo_loss_fn(
                    log_prob,
                    torch.zeros_like(log_prob),
                    inputs,
                    eps_clip=task.clip_low,
                    eps_clip_higher=task.clip_high,
                    c_clip=None,
                    **task.row.options,
                )
                (loss * (_loss_weight(inputs) / weights * task.world_size)).backward()

    return accumulated(task, run, trim=True)


def _loss_weight(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return inputs["loss_mask"].count_nonzero()


def _packed(part: MicroBatch) -> dict[str, torch.Tensor]:
    """Pack rows one after the other, as AReaL's engine does; float32, which its statistics insist on."""
    present = part.present.bool()
    return {
        "logprobs": part.old_log_prob[present].float(),
        "prox_logp": part.old_log_prob[present].float(),
        "advantages": part.advantages[present].float(),
        "loss_mask": part.mask[present].bool(),
        "cu_seqlens": torch.tensor([0, *part.lengths]).cumsum(0),
    }
