"""verl's FSDP2 engines for the device ``cpu``, for language models and for value models.

verl registers its FSDP engines only for ``cuda`` and ``npu``. One thing in them needs an accelerator: a
forward-only module (the reference) is offloaded to pinned host memory, which a machine without an accelerator
cannot pin and does not need.

Ray gives each rank one torch thread: with two, those of one operator spin waiting for each other where the
machine is busy.
"""

from typing import Any

from torch import nn
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead


class _NoPinnedOffload:
    """The change to both of verl's engines."""

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
class _CpuFSDPEngineWithLMHead(_NoPinnedOffload, FSDPEngineWithLMHead):  # type: ignore[misc]
    """verl's FSDP2 language-model engine."""


@EngineRegistry.register(model_type="value_model", backend="fsdp2", device="cpu")
class _CpuFSDPEngineWithValueHead(_NoPinnedOffload, FSDPEngineWithValueHead):  # type: ignore[misc]
    """verl's FSDP2 value-model engine (the critic)."""
