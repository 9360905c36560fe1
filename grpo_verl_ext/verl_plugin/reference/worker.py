"""Synchronise the reference with the policy, π_ref ← α π_θ + (1 − α) π_ref, and save it in checkpoints.

Each rank works on its own shards, without communication: policy and reference are the same model, sharded in
the same way over the same ranks. verl shards with FSDP1 (``actor.strategy=fsdp``, its default) or FSDP2.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_torch_device

from grpo_verl_ext.catalogue import ON_FSDP2

_Shards = dict[str, Tensor]
"""Parameter name → this rank's shard of it; writing into the tensors changes the model."""

_AS_THE_ACTOR = " ".join(
    f"'actor_rollout_ref.ref.fsdp_config.{key}=${{actor_rollout_ref.actor.fsdp_config.{key}}}'"
    for key in ("fsdp_size", "use_orig_params", "wrap_policy")
)
"""Overrides with which verl shards both models equally."""


@torch.no_grad()
def mix_in(reference: nn.Module, policy: nn.Module, mixup_alpha: float) -> None:
    """Set every parameter of the reference to α · policy + (1 − α) · reference; α = 1 copies bit for bit.

    Works with parameters on any device, offloaded or not, and keeps the reference's dtype: the mixture is
    computed in single precision or better, then rounded to it.

    Raises:
        ValueError: a model is sharded neither by FSDP1 nor by FSDP2, or the two are sharded differently.
    """
    old, new = _shards(reference), _shards(policy)
    _check_same_sharding(old, new, "in the policy", _AS_THE_ACTOR)
    for name, shard in old.items():
        _mix(shard, new[name], mixup_alpha)


@torch.no_grad()
def save_shards(reference: nn.Module, folder: str) -> None:
    """Write this rank's shards of the reference to the folder, atomically."""
    shards = _shards(reference)
    file = _shard_file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    torch.save({name: shard.cpu() for name, shard in shards.items()}, unfinished)
    unfinished.rename(file)


@torch.no_grad()
def load_shards(reference: nn.Module, folder: str) -> None:
    """Read the shards that `save_shards` wrote into this rank's reference.

    Raises:
        FileNotFoundError: there is no file for this rank; to continue with the first reference would be
            another run. Like verl's own checkpoints, this one needs the number of ranks that wrote it.
        ValueError: the reference in the checkpoint was sharded differently.
    """
    file = _shard_file(folder)
    if not file.is_file():
        raise FileNotFoundError(
            f"algorithm.grpo_ext.ref_model_sync_steps is set, but {file} does not exist, so there is no "
            f"reference to resume with; valid is a checkpoint of a run with ref_model_sync_steps on as many "
            f"ranks. "
            f"Type: trainer.resume_mode=disable, or ~algorithm.grpo_ext.ref_model_sync_steps"
        )
    shards = _shards(reference)
    saved: _Shards = torch.load(file, weights_only=True, mmap=True)
    _check_same_sharding(shards, saved, f"in {file}", "trainer.resume_mode=disable")
    for name, shard in shards.items():
        shard.copy_(saved[name])


def _shard_file(folder: str) -> Path:
    return Path(folder) / f"world_size_{dist.get_world_size()}_rank_{dist.get_rank()}.pt"


def _mix(shard: Tensor, target: Tensor, alpha: float) -> None:
    wide = torch.promote_types(torch.promote_types(shard.dtype, target.dtype), torch.float32)
    mixed = shard.to(wide)  # the shard itself, if it already has this dtype
    mixed.lerp_(target.to(shard.device, wide), alpha)
    shard.copy_(mixed)


def _shards(module: nn.Module) -> _Shards:
    """Return this rank's shards, after freeing what was gathered for the last forward pass.

    A forward pass leaves gathered copies behind, at least those of the embedding, the last norm and the head.
    These copies may be older than the shards, and the next forward pass would use them instead of what is
    written to the shards.
    """
    if isinstance(module, FullyShardedDataParallel):
        _reshard_fsdp1(module)
    elif isinstance(module, FSDPModule):
        _reshard_fsdp2(module)
    else:
        raise ValueError(
            f"algorithm.grpo_ext.ref_model_sync_steps is set, but the model of this engine is a "
            f"{type(module).__name__}, which the reference refresh cannot read; valid are models sharded by "
            f"FSDP1 or FSDP2. Type: {' '.join(ON_FSDP2)}, or "
            f"~algorithm.grpo_ext.ref_model_sync_steps"
        )
    # verl 0.9.1 offloads a policy to pinned memory without waiting for the copies.
    get_torch_device().synchronize()
    return {
        name: (each.to_local() if isinstance(each, DTensor) else each).detach()
        for name, each in module.named_parameters()
    }


def _reshard_fsdp1(root: FullyShardedDataParallel) -> None:
    # Before its first forward pass FSDP1 has not yet made the shards that it will read (pinned ones, if it
    # offloads); this call makes it do so.
    root.check_is_root()
    for unit in FullyShardedDataParallel.fsdp_modules(root):
        # The handle is private; the nearest public method, `summon_full_params`, would gather each unit in
        # full precision on the accelerator. verl's engine does the same as here, but only for the root and
        # where fsdp_size > 1.
        handle = unit._handle
        if handle is not None:
            handle.reshard(handle.uses_sharded_strategy)


def _reshard_fsdp2(root: nn.Module) -> None:
    # FSDP2's method reshards one unit; with reshard_after_forward=false every unit stays gathered.
    for unit in root.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()


def _check_same_sharding(
    shards: Mapping[str, Tensor], others: Mapping[str, Tensor], where: str, line: str
) -> None:
    for name in {**shards, **others}:
        here, there = (tuple(s[name].shape) if name in s else "missing" for s in (shards, others))
        if here != there:
            raise ValueError(
                f"this rank's shard of {name} is {here} in the reference and {there} {where}; valid is the "
                f"same strategy, fsdp_size, use_orig_params and wrap_policy for both. Type: {line}"
            )


class ReferenceSyncWorkerMixin:
    """Methods that synchronise the reference, for a worker that has both the actor and the reference."""

    actor: Any
    ref: Any

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]  # verl ships no types
    def refresh_reference(self, mixup_alpha: float) -> None:
        """Move the reference towards the policy: `mix_in`."""
        mix_in(self.ref.engine.module, self.actor.engine.module, mixup_alpha)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_reference(self, folder: str) -> None:
        """Write the reference: `save_shards`."""
        save_shards(self.ref.engine.module, folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def load_reference(self, folder: str) -> None:
        """Read the reference: `load_shards`."""
        load_shards(self.ref.engine.module, folder)
