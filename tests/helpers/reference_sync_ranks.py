"""Refresh the reference on models sharded by verl's FSDP engine, in processes that import this module.

Weights are multiples of 1/16 between −2 and 2, so that the mean of two is exact in bfloat16 and comparisons
are bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from fsdp1_ranks import OnHost
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from grpo_verl_ext.verl_plugin.reference.parts import ReferenceSyncWorkerMixin

WORLD_SIZE = 2
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Variant:
    """How verl's engine shards the two models."""

    strategy: str
    compute: str = "fp32"
    policy_dtype: torch.dtype = torch.float32
    reference_dtype: torch.dtype = torch.float32
    use_orig_params: bool = False
    reshard_after_forward: bool = True
    fsdp_size: int = -1
    tied: bool = False
    offloads_policy: bool = False


BF16 = {"compute": "bf16", "policy_dtype": torch.bfloat16, "reference_dtype": torch.bfloat16}
VARIANTS = [
    *(
        Variant(strategy, **options)
        for strategy in ("fsdp", "fsdp2")
        for options in (
            {},
            {"compute": "bf16"},
            BF16,
            {"compute": "bf16", "reference_dtype": torch.bfloat16},
            {"reshard_after_forward": False},
            {"compute": "bf16", "fsdp_size": 1},
            {"tied": True, "offloads_policy": True},
        )
    ),
    Variant("fsdp", use_orig_params=True),
    Variant("fsdp", use_orig_params=True, compute="bf16", reshard_after_forward=False, tied=True),
    Variant("fsdp", use_orig_params=True, **BF16, offloads_policy=True),
    Variant("fsdp", use_orig_params=True, compute="bf16", fsdp_size=1),
]


def llama(tied: bool) -> nn.Module:
    """No unit of it has an even number of parameters, so that FSDP1 pads each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 23, "hidden_size": 5, "head_dim": 2, "intermediate_size": 7}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = LlamaConfig(**sizes, max_position_embeddings=16, attention_bias=True, tie_word_embeddings=tied)
    return LlamaForCausalLM(config).eval()


def weights(seed: int, tied: bool) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(-32, 33, parameter.shape, generator=generator) / 16
        for name, parameter in llama(tied).named_parameters()
    }


def run_on_host() -> None:
    """Let verl's engine shard with FSDP1 and offload, which it only does on an accelerator."""
    from verl.workers.engine.fsdp import transformer_impl

    transformer_impl.FSDP = OnHost
    # Pinned memory needs an accelerator. Like it, a copy has a storage of its own.
    Tensor.pin_memory = Tensor.clone
    Tensor.is_pinned = lambda tensor: tensor.device.type == "cpu"


def sharded(values: Weights, variant: Variant, *, forward_only: bool) -> nn.Module:
    """A model with these weights, as verl builds a policy or, forward only, an offloaded reference."""
    from verl.workers.config import FSDPEngineConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.engine.fsdp.utils import create_device_mesh

    model = llama(variant.tied)
    model.load_state_dict(values, strict=False)  # the head is no key of its own where it is tied
    engine = FSDPEngineWithLMHead.__new__(FSDPEngineWithLMHead)
    engine.model_config = SimpleNamespace(lora_rank=0, enable_activation_offload=False)
    engine.engine_config = FSDPEngineConfig(
        strategy=variant.strategy,
        forward_only=forward_only,
        use_orig_params=variant.use_orig_params,
        reshard_after_forward=variant.reshard_after_forward,
        fsdp_size=variant.fsdp_size,
        mixed_precision={"param_dtype": variant.compute},
    )
    engine.device_mesh = create_device_mesh(WORLD_SIZE, variant.fsdp_size)
    dtype = variant.reference_dtype if forward_only else variant.policy_dtype
    return engine._build_fsdp_module(model.to(dtype))


def worker(reference: nn.Module, policy: nn.Module | None = None) -> ReferenceSyncWorkerMixin:
    """A worker with these models."""
    made = ReferenceSyncWorkerMixin()
    made.ref, made.actor = (SimpleNamespace(engine=SimpleNamespace(module=m)) for m in (reference, policy))
    return made


def logits(model: nn.Module) -> Tensor:
    """Leaves gathered copies behind, the root's at least, as verl's own log-prob passes do."""
    with torch.no_grad():
        return model(input_ids=torch.arange(12).view(2, 6)).logits


def whole(model: nn.Module) -> Weights:
    """Every parameter, gathered by PyTorch."""
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()
    return {name: parameter.full_tensor().detach() for name, parameter in model.named_parameters()}


def assert_same(found: Weights, expected: Weights, dtype: torch.dtype) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(found[name], value.to(dtype))] == []


def train(policy: nn.Module, variant: Variant) -> None:
    """One step, then what verl does before the refresh: log-probs without gradient, offloading."""
    from verl.utils.fsdp_utils import offload_fsdp_model_to_cpu

    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    tokens = torch.arange(12).view(2, 6)
    policy(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    logits(policy)
    if variant.offloads_policy:
        offload_fsdp_model_to_cpu(policy)


def check_refresh(variant: Variant, folder: Path) -> None:
    first, start = weights(1, variant.tied), weights(2, variant.tied)
    reference = sharded(first, variant, forward_only=True)
    policy = sharded(start, variant, forward_only=False)
    assert not torch.equal(logits(reference), logits(policy))

    worker(reference, policy).refresh_reference(0.5)
    half = {name: (first[name].double() + start[name].double()) / 2 for name in first}
    mixed = sharded({name: value.float() for name, value in half.items()}, variant, forward_only=True)
    assert torch.equal(logits(reference), logits(mixed))
    assert_same(whole(reference), half, variant.reference_dtype)

    logits(reference)
    for _ in range(2):
        train(policy, variant)
        worker(reference, policy).refresh_reference(1.0)
        assert torch.equal(logits(reference), logits(policy))
        trained = whole(policy)
        assert_same(whole(reference), trained, variant.reference_dtype)
    assert not all(torch.equal(trained[name], start[name].to(variant.policy_dtype)) for name in start)
    check_resume(reference, trained, variant, folder)


def check_resume(reference: nn.Module, expected: Weights, variant: Variant, folder: Path) -> None:
    logits(reference)
    worker(reference).save_reference(str(folder))
    for was_used in (False, True):
        resumed = sharded(weights(3, variant.tied), variant, forward_only=True)
        if was_used:
            logits(resumed)
        worker(resumed).load_reference(str(folder))
        assert torch.equal(logits(resumed), logits(reference)), f"{was_used=}"
        assert_same(whole(resumed), expected, variant.reference_dtype)


def check_rounding(folder: Path) -> None:
    """A reference in bfloat16 gets the mixture rounded once, not the policy rounded before.

    In units of 2⁻⁷ above 1, where a bfloat16 is a whole number: reference 1, policy 1.625, their mean 1.3125,
    which is 1. The policy rounded first would be 2 and the mean 1.5, a tie that goes to the even 2.
    """
    variant = Variant("fsdp", "bf16", reference_dtype=torch.bfloat16)

    def all_of(units: float) -> Weights:
        return {name: torch.full_like(value, 1 + units / 128) for name, value in weights(1, False).items()}

    reference = sharded(all_of(1), variant, forward_only=True)
    worker(reference, sharded(all_of(1.625), variant, forward_only=False)).refresh_reference(0.5)
    assert_same(whole(reference), all_of(1), torch.bfloat16)


def check_refusals(folder: Path) -> None:
    """What cannot be mixed or resumed is refused in one message, and changes nothing."""
    values = weights(1, tied=False)
    reference = sharded(values, Variant("fsdp"), forward_only=True)
    for other in (Variant("fsdp", use_orig_params=True), Variant("fsdp2"), Variant("fsdp", fsdp_size=1)):
        policy = sharded(weights(2, tied=False), other, forward_only=False)
        with pytest.raises(ValueError, match=r"in the reference and .* in the policy; valid .*use_orig"):
            worker(reference, policy).refresh_reference(1.0)
        worker(policy).save_reference(str(folder / "other"))
        with pytest.raises(ValueError, match=r"in the reference and .*rank_.*\.pt; valid .*_mode=disable"):
            worker(reference).load_reference(str(folder / "other"))
    assert_same(whole(reference), values, torch.float32)
    with pytest.raises(FileNotFoundError, match=r"no reference to resume with.*trainer\.resume_mode=disable"):
        worker(reference).load_reference(str(folder / "elsewhere"))


CHECKS: dict[str, Callable[[Path], None]] = {
    **{str(variant): lambda folder, v=variant: check_refresh(v, folder) for variant in VARIANTS},
    "rounding": check_rounding,
    "refusals": check_refusals,
}


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), WORLD_SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE)
    run_on_host()
    for number, (name, check) in enumerate(CHECKS.items()):
        try:
            check(Path(folder) / str(number))
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error
    dist.barrier()
    dist.destroy_process_group()
