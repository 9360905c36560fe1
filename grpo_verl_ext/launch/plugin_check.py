"""Refuse a training whose processes do not load the plugin: verl would go on without a word.

verl logs at DEBUG that a plugin is missing or failed, and a worker without it fails only when it looks for
the estimator or the loss, after a rollout.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from omegaconf import DictConfig
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from grpo_verl_ext.utils.keys import RUNTIME_ENVIRONMENT, setting

_SECONDS = 300
"""Time limit for a worker of each node to start and to import verl."""
_POLICY = "VERL_USE_EXTERNAL_PLUGINS"
_INSTALL = "pip install ., in a checkout of grpo_verl_ext"

Answer = tuple[str, str | None, str | None]
"""Path of a Python, the package's version there, and why verl does not load the plugin; None for none."""


class NoPluginError(RuntimeError):
    """A process of the training would not load the plugin; the message says which, why and what to type."""


def inspector() -> Callable[[], Answer]:
    """Return a function that answers for the process in which it is called.

    It is made here so that Ray sends its code: a worker that lacks this package could not import it.
    """

    def inspect() -> Answer:
        import os
        import sys
        from importlib.metadata import PackageNotFoundError, version

        try:
            import verl  # noqa: F401  # loads the plugins
        except ImportError as error:
            return sys.executable, None, f"verl cannot be imported: {error}"
        try:
            found = version("grpo-verl-ext")
        except PackageNotFoundError:
            return sys.executable, None, "the package is not installed for this Python"
        if "grpo_verl_ext.plugin" in sys.modules:
            return sys.executable, found, None
        policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
        if policy != "auto":
            return sys.executable, found, f"VERL_USE_EXTERNAL_PLUGINS is {policy} there"
        return (
            sys.executable,
            found,
            "it is installed, but verl could not load it; stderr there has the reason",
        )

    return inspect


def check_here() -> None:
    """Refuse where verl has not loaded the plugin in this process.

    Raises:
        NoPluginError: it has not.
    """
    _refuse("this process", inspector()())


def check_configuration(config: DictConfig) -> None:
    """Refuse a configuration that keeps the plugin from the workers.

    Raises:
        NoPluginError: the environment variables of Ray's runtime environment do.
    """
    key = f"{RUNTIME_ENVIRONMENT}.{_POLICY}"
    policy = str(setting(config, key, "auto")).strip().lower()
    names = [name.strip() for name in policy.split(",")]
    if policy != "auto" and "grpo_verl_ext" not in names:
        raise NoPluginError(
            f"{key} is {policy}, with which no worker loads the plugin; valid is auto, or a list with "
            f"grpo_verl_ext. Type: the same command without it"
        )


def check_workers() -> None:
    """Refuse where a node of the connected Ray would train without the plugin, or with another version.

    A task on each node imports verl in the training's own runtime environment. Nodes that join later are not
    asked.

    Raises:
        NoPluginError: the first node that would, or that does not answer.
    """
    for node, answer in _answers(inspector()):
        _refuse(f"a worker on the node {node}", answer)


def _answers(inspect: Callable[[], Answer]) -> Iterator[tuple[str, Answer]]:
    asked = [(node["NodeManagerAddress"], _asked(inspect, node)) for node in ray.nodes() if node["Alive"]]
    for address, answer in asked:
        try:
            yield address, ray.get(answer, timeout=_SECONDS)
        except (RayError, TimeoutError) as error:
            raise NoPluginError(f"a worker on the node {address} could not be asked: {error}") from error


def _asked(inspect: Callable[[], Answer], node: Mapping[str, Any]) -> Any:
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=there, max_retries=0)(inspect).remote()


def _refuse(where: str, answer: Answer) -> None:
    python, version, reason = answer
    here = importlib.metadata.version("grpo-verl-ext")
    if reason is None and version != here:
        reason = f"it has version {version} of the package, and {sys.executable} has {here}"
    if reason is not None:
        raise NoPluginError(
            f"{where}, {python}, has no plugin for this training: {reason}. Type: {_line(reason)}"
        )


def _line(reason: str) -> str:
    return f"unset {_POLICY}" if _POLICY in reason else f"{_INSTALL}, with that Python"
