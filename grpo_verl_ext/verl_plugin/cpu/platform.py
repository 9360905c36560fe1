"""verl's platform ``cpu``: the host processor as the device, used where ``VERL_PLATFORM=cpu`` asks for it."""

import resource
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from grpo_verl_ext.verl_plugin.cpu.chosen import VLLM_ENVIRONMENT, is_cpu_chosen


class _CpuDeviceModule(types.ModuleType):
    """The calls that verl makes on an accelerator's torch module; all others come from ``torch.cpu``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def get_device_name(self, device: Any = None) -> str:  # noqa: ARG002  # torch.cuda's signature
        """Return the device's name, for logs."""
        return "cpu"

    def empty_cache(self) -> None:
        """No-op: nothing is cached."""

    def ipc_collect(self) -> None:
        """No-op: there are no inter-process device handles."""

    def manual_seed(self, seed: int) -> None:
        """Seed the host's generator."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:  # noqa: ARG002
        """Return the state of the host's generator."""
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:  # noqa: ARG002
        """Restore the host's generator."""
        torch.set_rng_state(new_state)

    def memory_allocated(self, device: Any = None) -> int:  # noqa: ARG002
        """Return the resident set of this process, in bytes."""
        return int(psutil.Process().memory_info().rss)

    def max_memory_allocated(self, device: Any = None) -> int:  # noqa: ARG002
        """Return the peak resident set of this process, in bytes."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """No-op: the kernel's peak cannot be reset."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:  # noqa: ARG002
        """Return free and total memory of the host, in bytes."""
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)


DEVICE_MODULE = _CpuDeviceModule("grpo_verl_ext.verl_plugin.cpu.platform.DEVICE_MODULE", __doc__)


class PlatformCPU(PlatformBase):  # type: ignore[misc]  # verl ships no types
    """The host processor as verl's device: gloo for communication, shared memory for weight transfer."""

    @property
    def device_name(self) -> str:
        """Type of ``torch.device``."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """Vendor key of verl's engine registry, which engines for the device ``cpu`` do not set."""
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        """``torch.cpu`` with the calls that verl makes on an accelerator's module."""
        return DEVICE_MODULE

    def is_available(self) -> bool:
        """Whether the processor is available: always."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:  # noqa: ARG002  # verl's signature
        """Whether ``VERL_PLATFORM=cpu`` asks for this platform."""
        return is_cpu_chosen()

    def current_device(self) -> torch.device:
        """Return a device, not an index, since FSDP2 and verl pass it to ``Tensor.to``."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """Return 1: the host is the only device."""
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
        """No-op: the host's allocator keeps no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:  # noqa: ARG002
        """Return no compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return gloo, over which collectives run."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the environment variable by which Ray assigns the resource ``GPU``."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # noqa: ARG002
        """No-op: there are no profiler ranges."""
        yield

    def profiler_start(self) -> None:
        """No-op: no device profiler."""

    def profiler_stop(self) -> None:
        """No-op: no device profiler."""

    def ray_resource_name(self) -> str:
        """Return the resource that verl's pools ask for; here it counts logical slots."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return no variables: Ray may set all of them."""
        return []

    def is_ipc_supported(self) -> bool:
        """Whether device memory can be shared: no, weights are transferred through shared host memory."""
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        """Return variables that make vLLM choose its CPU platform and run its worker in the engine's process.

        vLLM starts a separate process for a CPU worker unless its multiprocessing is off; with one worker per
        replica that only costs start-up time. The engine has its own process either way.
        """
        return {**VLLM_ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

    def cudart(self) -> Any:
        """Return None: there is no CUDA runtime."""
        return None


def register_platform() -> None:
    """Register the platform with verl's detection, after every accelerator."""
    if PlatformRegistry.get("cpu") is not PlatformCPU:
        PlatformRegistry.register(platform="cpu")(PlatformCPU)
