"""The reference refresh on gloo processes; in its own file, so that they can import it."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from grpo_verl_ext.verl_plugin.reference import refresh


def sharded(seed: int, world_size: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3, bias=False)).to(dtype)
    mesh = init_device_mesh("cpu", (world_size,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model: nn.Module) -> list[Tensor]:
    model.reshard()
    return [parameter.full_tensor().detach().clone() for parameter in model.parameters()]


def run_rank(rank: int, world_size: int, folder: str) -> None:
    store = dist.FileStore(str(Path(folder) / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    reference, policy = sharded(1, world_size), sharded(2, world_size)
    inputs = torch.randn(4, 5)
    for model in (reference, policy):
        model(inputs)  # leaves the root's parameters gathered, as a step of training does
    before, target = whole(reference), whole(policy)
    for model in (reference, policy):
        model(inputs)

    refresh.mix_in(reference, policy, 0.25)
    for found, old, new in zip(whole(reference), before, target, strict=True):
        torch.testing.assert_close(found, 0.75 * old + 0.25 * new, rtol=1e-6, atol=1e-7)
    refresh.mix_in(reference, policy, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(whole(reference), target, strict=True)), "not bit for bit"
    assert all(torch.equal(a, b) for a, b in zip(whole(policy), target, strict=True)), "the policy changed"
    torch.testing.assert_close(reference(inputs), policy(inputs), rtol=0, atol=0)

    half = sharded(3, world_size, torch.bfloat16)
    refresh.mix_in(half, policy, 1.0)
    assert all(torch.equal(a, b.bfloat16()) for a, b in zip(whole(half), target, strict=True))

    refresh.save(reference, str(Path(folder) / "reference"))
    resumed = sharded(4, world_size)
    refresh.load(resumed, str(Path(folder) / "reference"))
    assert all(torch.equal(a, b) for a, b in zip(whole(resumed), target, strict=True))
    with pytest.raises(FileNotFoundError, match=r"no reference to resume with.*trainer\.resume_mode=disable"):
        refresh.load(resumed, str(Path(folder) / "elsewhere"))
    dist.barrier()
    dist.destroy_process_group()
