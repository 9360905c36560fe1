"""Whether this process shall run on the CPU platform, decided without importing anything of it."""

import os
import resource
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

VARIABLE = "VERL_PLATFORM"
"""verl's environment variable for the platform of a process; unset, verl looks for an accelerator."""


def chosen_platform() -> str:
    """The platform that this process was told to use, as verl reads it; empty where verl looks for one."""
    return os.environ.get(VARIABLE, "").strip().lower()


def is_cpu_chosen() -> bool:
    """``True`` when ``VERL_PLATFORM=cpu``; what accelerators are visible here does not matter.

    A process that sees no accelerator proves nothing: a login node, a head node, an actor to which Ray gave
    none.
    """
    return chosen_platform() == "cpu"


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


DEVICE_MODULE = CpuDeviceModule("grpo_verl_ext.verl_plugin.cpu.platform.DEVICE_MODULE", __doc__)


class PlatformCPU(PlatformBase):  # type: ignore[misc]  # verl ships no types
    """Host processor as verl's device: gloo for communication, shared memory for weight transfer."""

    @property
    def device_name(self) -> str:
        """``torch.device`` type."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """Vendor key of verl's engine registry; engines for the processor have none."""
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        """``torch.cpu`` with the calls that verl makes on an accelerator's module."""
        return DEVICE_MODULE

    def is_available(self) -> bool:
        """The processor is always there."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:  # noqa: ARG002  # verl's signature
        """Answer only where ``VERL_PLATFORM=cpu`` asks for it."""
        return is_cpu_chosen()

    def current_device(self) -> torch.device:
        """A device, not an index: FSDP2 and verl pass it straight to ``Tensor.to``."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """One device: the host."""
        return 1

    def set_device(self, device_index: int) -> None:
        """No-op: there is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """No-op: operations on the processor are synchronous."""

    def manual_seed(self, seed: int) -> None:
        """Seed the host's generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the host's generator."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """No-op: the host's allocator has no expandable segments."""

    def empty_cache(self) -> None:
        """No-op: the host's allocator keeps no cache of its own."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:  # noqa: ARG002
        """No compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Collectives run over gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Ray's name for what it hands out under ``GPU``."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # noqa: ARG002
        """No profiler ranges."""
        yield

    def profiler_start(self) -> None:
        """No-op: no device profiler."""

    def profiler_stop(self) -> None:
        """No-op: no device profiler."""

    def ray_resource_name(self) -> str:
        """Logical slots, counted under the name that verl's resource pools ask for."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Nothing to keep Ray from setting."""
        return []

    def is_ipc_supported(self) -> bool:
        """No device memory to share: weights travel through shared host memory."""
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        """Make vLLM choose its CPU platform, and let its worker live in the engine's process.

        vLLM forces a process of its own on a CPU worker unless its multiprocessing is off; for one worker
        to a replica that process is only start-up time. The engine keeps its own process either way.
        """
        return {"VLLM_TARGET_DEVICE": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

    def cudart(self) -> Any:
        """No CUDA runtime."""
        return None


def register() -> None:
    """Offer the platform to verl's detection, behind every accelerator."""
    if PlatformRegistry.get("cpu") is not PlatformCPU:
        PlatformRegistry.register(platform="cpu")(PlatformCPU)
