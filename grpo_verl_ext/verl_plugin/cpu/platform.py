"""verl's platform ``cpu``: the host processor as the device, used where ``VERL_PLATFORM=cpu`` asks for it."""

import resource
import sys
import types
from contextlib import nullcontext
from operator import attrgetter

import psutil
import torch
from verl.plugin.platform import PlatformBase

from grpo_verl_ext.verl_plugin.cpu import VLLM_ENVIRONMENT, chosen_platform

_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of a unit of the kernel's ``ru_maxrss``."""
_NOTHING = staticmethod(lambda *_, **__: None)
"""For a call that has no meaning here."""

_DEVICE_MODULE = types.ModuleType(f"{__name__}._DEVICE_MODULE", "``torch.cpu``, and verl's other calls.")
vars(_DEVICE_MODULE).update(
    {name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")},
    get_device_name=lambda *_, **__: "cpu",
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_rng_state=lambda *_, **__: torch.get_rng_state(),
    set_rng_state=lambda new_state, *_, **__: torch.set_rng_state(new_state),
    # bytes of this process, and of the host
    **dict.fromkeys(
        ("memory_allocated", "memory_reserved"), lambda *_, **__: psutil.Process().memory_info().rss
    ),
    **dict.fromkeys(
        ("max_memory_allocated", "max_memory_reserved"),
        lambda *_, **__: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT,
    ),
    mem_get_info=lambda *_, **__: attrgetter("available", "total")(psutil.virtual_memory()),
    # nothing is cached, there are no handles of other processes, and the kernel's peak cannot be reset
    empty_cache=_NOTHING,
    ipc_collect=_NOTHING,
    reset_peak_memory_stats=_NOTHING,
)


class PlatformCPU(PlatformBase):  # type: ignore[misc]  # verl ships no types
    """The host processor as verl's device: gloo for communication, shared memory for weight transfer."""

    device_name = "cpu"
    # key of verl's engine registry, which engines for the device ``cpu`` do not set
    vendor_name = "cpu"
    device_module = _DEVICE_MODULE

    # asked for, never guessed
    is_platform_available = staticmethod(lambda *_, **__: chosen_platform() == "cpu")
    # The host is always there, and its only device; what it computes is synchronous.
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    # a device, not an index, since FSDP2 and verl pass it to `Tensor.to`
    current_device = staticmethod(lambda: torch.device("cpu"))
    get_device_capability = staticmethod(lambda *_, **__: (None, None))
    set_device = synchronize = set_allocator_settings = empty_cache = _NOTHING
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    # There is no profiler and no CUDA runtime.
    nvtx_range = staticmethod(lambda *_, **__: nullcontext())
    profiler_start = profiler_stop = cudart = _NOTHING

    communication_backend_name = staticmethod(lambda: "gloo")
    # by which Ray assigns the resource that verl's pools ask for, which counts logical slots here
    visible_devices_envvar = staticmethod(lambda: "CUDA_VISIBLE_DEVICES")
    ray_resource_name = staticmethod(lambda: "GPU")
    ray_noset_envvars = staticmethod(list[str])  # Ray may set all of them
    # Weights are transferred through shared memory of the host, not of a device.
    is_ipc_supported = staticmethod(lambda: False)
    # vLLM starts a separate process for a CPU worker unless its multiprocessing is off; with one worker per
    # replica that only costs start-up time. The engine has its own process either way.
    rollout_env_vars = staticmethod(lambda: {**VLLM_ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
