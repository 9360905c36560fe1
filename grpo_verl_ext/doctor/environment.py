"""List versions, and the plugin as verl sees it here and in a Ray worker."""

from __future__ import annotations

import platform as host
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import ray

from grpo_verl_ext.utils.which_ray import which_ray
from grpo_verl_ext.verl_plugin.cpu.patches import CPU_BUILD
from grpo_verl_ext.verl_plugin.preflight.environment import TESTED

_WORKER_SECONDS = 180
"""Time limit for a Ray worker to start and to import verl."""


@dataclass(frozen=True)
class Seen:
    """The platform, estimators and losses of a process after ``import verl``."""

    platform: str
    """verl's name of the device."""
    estimators: dict[str, str]
    """Name → module of the function that verl calls."""
    losses: dict[str, str]


@dataclass(frozen=True)
class Version:
    """A package whose version can change results."""

    name: str
    found: str | None
    tested: str


def versions_beside_tested() -> list[Version]:
    """Return the installed versions beside those that the tests run with."""
    return [
        Version(_installed_as(name), _version(_installed_as(name)), tested) for name, tested in TESTED.items()
    ]


def python_version() -> str:
    """Return the Python version of this process."""
    return host.python_version()


def seen_here() -> Seen:
    """Return what this process has after importing verl, which loads its plugins."""
    import verl  # noqa: F401
    from verl.plugin.platform import get_platform
    from verl.trainer.ppo import core_algos

    return Seen(
        str(get_platform().device_name),
        _owners(core_algos.ADV_ESTIMATOR_REGISTRY),
        _owners(core_algos.POLICY_LOSS_REGISTRY),
    )


def seen_by_a_worker() -> Seen:
    """Return the same for a worker of a Ray started for this, or of the cluster in RAY_ADDRESS.

    Raises:
        ValueError: ray.init refuses the address.
        TimeoutError: the worker does not answer.
        ray.exceptions.RayError: the worker fails.
    """
    address = which_ray().address
    ray.init(address, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        found: Seen = ray.get(ray.remote(num_cpus=0)(seen_here).remote(), timeout=_WORKER_SECONDS)
    finally:
        ray.shutdown()
    return found


def _owners(registry: Mapping[object, object]) -> dict[str, str]:
    return {
        str(getattr(name, "value", name)): getattr(function, "__module__", type(function).__module__)
        for name, function in registry.items()
    }


def _installed_as(name: str) -> str:
    """Return the name of the distribution; vLLM's CPU build has another one."""
    return CPU_BUILD if name == "vllm" and _version(CPU_BUILD) is not None else name


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
