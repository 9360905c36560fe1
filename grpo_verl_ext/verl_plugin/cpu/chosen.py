"""Whether a process is to run on the CPU platform; nothing here needs a verl that has platforms."""

import os

PLATFORM_VARIABLE = "VERL_PLATFORM"
"""verl's environment variable for the platform of a process; if unset, verl looks for an accelerator."""
VLLM_ENVIRONMENT = {"VLLM_TARGET_DEVICE": "cpu"}
"""Makes vLLM choose its CPU platform; every process of the platform has it before it imports vLLM."""


def chosen_platform() -> str:
    """Return the platform that `PLATFORM_VARIABLE` names, as verl reads it; empty if verl looks for one."""
    return os.environ.get(PLATFORM_VARIABLE, "").strip().lower()


def is_cpu_chosen() -> bool:
    """Whether ``VERL_PLATFORM=cpu`` is set; accelerators are not looked for.

    That a process sees no accelerator does not mean a training on CPU: it may be on a login node or a head
    node, or be an actor to which Ray gave no accelerator.
    """
    return chosen_platform() == "cpu"
