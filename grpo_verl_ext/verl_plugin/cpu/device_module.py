"""``torch.cpu`` completed by the calls that verl makes on ``torch.cuda``.

Memory figures are those of the process (resident set, peak resident set) and of the host, in bytes, so
that verl's ``perf/max_memory_allocated_gb`` says something true here too.
"""

import resource
import sys
import types
from typing import Any

import psutil
import torch


class CpuDeviceModule(types.ModuleType):
    """What verl expects from an accelerator's torch module; everything else comes from ``torch.cpu``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def get_device_name(self, device: Any = None) -> str:  # noqa: ARG002  # torch.cuda's signature
        """Name for logs."""
        return "cpu"

    def empty_cache(self) -> None:
        """No-op: nothing is cached."""

    def ipc_collect(self) -> None:
        """No-op: no inter-process device handles."""

    def set_device(self, device: Any) -> None:
        """No-op: there is one device."""

    def manual_seed(self, seed: int) -> None:
        """Seed the host's generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the host's generator."""
        torch.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:  # noqa: ARG002
        """State of the host's generator."""
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:  # noqa: ARG002
        """Restore the host's generator."""
        torch.set_rng_state(new_state)

    def memory_allocated(self, device: Any = None) -> int:  # noqa: ARG002
        """Resident set of this process, in bytes."""
        return int(psutil.Process().memory_info().rss)

    def max_memory_allocated(self, device: Any = None) -> int:  # noqa: ARG002
        """Peak resident set of this process, in bytes."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """No-op: the kernel's peak cannot be reset."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:  # noqa: ARG002
        """Free and total memory of the host, in bytes."""
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)


DEVICE_MODULE = CpuDeviceModule("grpo_verl_ext.verl_plugin.cpu.device_module.DEVICE_MODULE", __doc__)
