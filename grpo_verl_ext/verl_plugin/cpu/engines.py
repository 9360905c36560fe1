"""verl's FSDP2 engines on the processor, for language and for value models.

verl registers its FSDP engines for ``cuda`` and ``npu`` only. Nothing in them needs an accelerator but one
thing: a forward-only module (the reference) is offloaded to pinned host memory, which a machine with no
accelerator cannot pin and does not need. And one thing is worth adding: Ray gives each actor one thread,
while the ranks are alone on the machine when they train.
"""

import os
from typing import Any

import torch
from torch import nn
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead


def threads_of_a_rank() -> int:
    """The cores that this process may use, shared among verl's ranks on this machine; at least one."""
    ranks = int(os.environ.get("RAY_LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // ranks)


class _OnHost:
    """What both engines change in verl's."""

    engine_config: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        torch.set_num_threads(threads_of_a_rank())
        super().__init__(*args, **kwargs)

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
