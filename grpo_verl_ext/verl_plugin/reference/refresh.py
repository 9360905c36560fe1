"""π_ref ← α π_θ + (1 − α) π_ref on the shards of one rank, and their way through a checkpoint.

No rank sees more than its own shards: policy and reference are the same model, sharded over the same ranks.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@torch.no_grad()
def mix_in(reference: nn.Module, policy: nn.Module, mixup_alpha: float) -> None:
    """Set every parameter of the reference to α · policy + (1 − α) · reference; α = 1 copies bit for bit.

    Works wherever the parameters are, offloaded or not, and keeps the reference's dtype.
    """
    for module in (reference, policy):
        _reshard(module)
    pairs = zip(reference.named_parameters(), policy.named_parameters(), strict=True)
    for (name, old), (policy_name, new) in pairs:
        if name != policy_name:
            raise ValueError(f"the reference's parameter {name} stands where the policy has {policy_name}")
        shard = _local(old)
        shard.lerp_(_local(new).to(shard.device, shard.dtype), mixup_alpha)


def save(reference: nn.Module, folder: str) -> None:
    """Write this rank's shards, atomically."""
    _reshard(reference)
    file = _shard_file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    torch.save({name: _local(p).cpu() for name, p in reference.named_parameters()}, unfinished)
    unfinished.rename(file)


@torch.no_grad()
def load(reference: nn.Module, folder: str) -> None:
    """Read back what `save` wrote.

    Raises:
        FileNotFoundError: this rank has nothing to read; going on with the first reference would be another
            run. Like verl's own checkpoints, this one fits the number of ranks that wrote it.
    """
    file = _shard_file(folder)
    if not file.is_file():
        raise FileNotFoundError(
            f"algorithm.grpo_ext.ref_sync_steps is set, but {file} does not exist, so there is no reference "
            f"to resume with; valid is a checkpoint of a run with ref_sync_steps on as many ranks. "
            f"Type: trainer.resume_mode=disable, or ~algorithm.grpo_ext.ref_sync_steps"
        )
    _reshard(reference)
    shards = torch.load(file, weights_only=True)
    for name, parameter in reference.named_parameters():
        _local(parameter).copy_(shards[name])


def _shard_file(folder: str) -> Path:
    return Path(folder) / f"world_size_{dist.get_world_size()}_rank_{dist.get_rank()}.pt"


def _local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _reshard(module: nn.Module) -> None:
    # FSDP2 leaves the root's parameters whole after a forward pass; what is then read is a passing copy.
    reshard = getattr(module, "reshard", None)
    if reshard is not None:
        reshard()
