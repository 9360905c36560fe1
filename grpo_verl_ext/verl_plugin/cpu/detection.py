"""Whether this process shall run on the CPU platform, decided without importing anything of it."""

import os

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
