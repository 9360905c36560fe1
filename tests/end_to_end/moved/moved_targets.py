"""Simulate a later verl that has moved the patches' targets: see ``VERL_USE_EXTERNAL_MODULES``."""

from typing import Any, NoReturn

from grpo_verl_ext.verl_plugin import patches


def gone(module: Any) -> NoReturn:
    raise AttributeError(f"module {module.__name__!r} has no attribute 'that_was_here'")


patches.PATCHES = {name: patch._replace(apply=gone) for name, patch in patches.PATCHES.items()}
