"""verl's FSDP2 engines on the processor, for language and for value models.

verl registers its FSDP engines for ``cuda`` and ``npu`` only. Nothing in them needs an accelerator but one
thing: a forward-only module (the reference) is offloaded to pinned host memory, which a machine with no
accelerator cannot pin and does not need.

Ray gives each rank one torch thread, and so it stays: with two on two cores a step took 12.3 s instead of
13.2 s, but on a busy machine, where threads of one operator spin waiting for each other, it took minutes.
"""

from typing import Any

from torch import nn
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead


class _OnHost:
    """What both engines change in verl's."""

    engine_config: Any

    def _build_fsdp_module(self, module: nn.Module) -> nn.Module:
        """Shard a forward-only module like any other: its parameters are in host memory already."""
        forward_only = self.engine_config.forward_only
        object.__setattr__(self.engine_config, "forward_only", False)
        try:
            built: nn.Module = super()._build_fsdp_module(module)  # type: ignore[misc]  # verl's engine is next
        finally:
            object.__setattr__(self.engine_config, "forward_only", forward_only)
        return built


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CpuFSDPEngineWithLMHead(_OnHost, FSDPEngineWithLMHead):  # type: ignore[misc]
    """verl's FSDP2 language-model engine."""


@EngineRegistry.register(model_type="value_model", backend="fsdp2", device="cpu")
class CpuFSDPEngineWithValueHead(_OnHost, FSDPEngineWithValueHead):  # type: ignore[misc]
    """verl's FSDP2 value-model engine (the critic)."""
