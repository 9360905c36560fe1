"""Refuse a training whose processes do not load the plugin: verl would go on without a word.

verl logs at DEBUG that a plugin is missing or failed, and a worker without it fails only when it looks for
the estimator or the loss, after a rollout.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

import ray
from omegaconf import DictConfig
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from grpo_verl_ext.utils.keys import RUNTIME_ENVIRONMENT, setting

_SECONDS = 300
"""Time limit for a worker of each node to start and to import verl."""
_POLICY = "VERL_USE_EXTERNAL_PLUGINS"


class NoPluginError(RuntimeError):
    """A process of the training would not load the plugin; the message says which, why and what to type."""


def inspector() -> Callable[[], str | None]:
    """Return a function that says why verl loads no plugin in the process that calls it; None: it does.

    It is made here so that Ray sends its code: a worker that lacks this package could not import it.
    """
    wanted = importlib.metadata.version("grpo-verl-ext")

    def inspect() -> str | None:
        import os
        import sys
        from importlib.metadata import version

        install = f"Type there, with {sys.executable}, in a checkout of grpo_verl_ext: pip install ."
        try:
            import verl  # noqa: F401  # loads the plugins

            found = version("grpo-verl-ext")
        except ImportError as error:  # of verl, or that the package is not installed
            return f"{error}. {install}"
        if found != wanted:
            return f"it has version {found} of the package, and the driver has {wanted}. {install}"
        policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
        if "grpo_verl_ext.plugin" in sys.modules:
            return None
        if policy != "auto":
            return f"VERL_USE_EXTERNAL_PLUGINS is {policy} there. Type: unset VERL_USE_EXTERNAL_PLUGINS"
        return f"verl could not load it; stderr there has the reason. {install}"

    return inspect


def check_here() -> None:
    """Refuse where verl has not loaded the plugin in this process.

    Raises:
        NoPluginError: it has not.
    """
    if reason := inspector()():
        raise NoPluginError(f"this process has no plugin for this training: {reason}")


def check_configuration(config: DictConfig) -> None:
    """Refuse a configuration that keeps the plugin from the workers.

    Raises:
        NoPluginError: the environment variables of Ray's runtime environment do.
    """
    key = f"{RUNTIME_ENVIRONMENT}.{_POLICY}"
    policy = str(setting(config, key, "auto")).strip().lower()
    if policy != "auto" and "grpo_verl_ext" not in (name.strip() for name in policy.split(",")):
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
    asked = {
        node["NodeManagerAddress"]: ray.remote(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            max_retries=0,
        )(inspector()).remote()
        for node in ray.nodes()
        if node["Alive"]
    }
    for address, answer in asked.items():
        try:
            reason = ray.get(answer, timeout=_SECONDS)
        except (RayError, TimeoutError) as error:
            reason = f"it could not be asked: {error}"
        if reason:
            raise NoPluginError(f"a worker on the node {address} has no plugin for this training: {reason}")
