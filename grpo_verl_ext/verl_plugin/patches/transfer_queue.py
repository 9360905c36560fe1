"""Give each of several trainings on one Ray cluster a TransferQueue of its own.

Patch of ``transfer_queue.interface``: its controller is an actor with a fixed name in a fixed namespace, so a
second training, another job, would silently join the queue of the first and take its samples, and the first
to end would stop the queue. No setting changes this. The patch is applied in trainings that set
``algorithm.grpo_ext.own_queue``, which ``ablate`` sets for those that it submits to a cluster.
"""

from __future__ import annotations

from typing import Any


def patch_interface(interface: Any) -> None:
    """Make the module look up and create its controller in a namespace of this job."""
    interface.ray = _Ray(interface.ray)
    interface.TransferQueueController = _Controller(interface.TransferQueueController)


class _Ray:
    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def get_actor(self, name: str, namespace: str) -> Any:
        return self._ray.get_actor(name, _namespace_of_job(namespace))


class _Controller:
    def __init__(self, controller: Any) -> None:
        self._controller = controller

    def options(self, *, namespace: str, **options: Any) -> Any:
        return self._controller.options(namespace=_namespace_of_job(namespace), **options)


def _namespace_of_job(namespace: str) -> str:
    import ray

    return f"{namespace}-{ray.get_runtime_context().get_job_id()}"
