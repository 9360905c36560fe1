"""Decide, importing nothing of the CPU platform, whether this process shall have it."""

import os

from verl.plugin.platform import PlatformRegistry


def is_cpu_chosen() -> bool:
    """``True`` when ``VERL_PLATFORM=cpu``, or when it is unset and verl finds no accelerator.

    verl's own platforms are asked with their relaxed check, which also sees an accelerator from a Ray
    actor that was given none.
    """
    chosen = os.environ.get("VERL_PLATFORM", "").strip().lower()
    return chosen == "cpu" if chosen else accelerator() is None


def accelerator() -> str | None:
    """Name of the accelerator platform that verl would choose here (``nvidia``, ``huawei``, …), or None."""
    for name in PlatformRegistry.registered_names():
        platform = PlatformRegistry.get(name)
        if platform is None or platform.__module__.startswith("grpo_verl_ext."):
            continue
        if platform().is_platform_available(use_smi_check=True):
            return str(name)
    return None
