"""Give each of several trainings on one Ray cluster a TransferQueue of its own.

Patch of ``transfer_queue.interface``: its controller is an actor with a fixed name in a fixed namespace, so a
second training, another job, would silently join the queue of the first and take its samples, and the first
to end would stop the queue. No setting changes this. The patch is applied in trainings that set
``algorithm.grpo_ext.own_queue``, which ``ablate`` sets for those that it submits to a cluster.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


def patch_interface(interface: Any) -> None:
    """Make the module look up and create its controller in a namespace of this job."""
    ray, controller = interface.ray, interface.TransferQueueController

    def of_job(namespace: str) -> str:
        return f"{namespace}-{ray.get_runtime_context().get_job_id()}"

    interface.ray = ModuleType(ray.__name__, __doc__)
    vars(interface.ray).update(
        vars(ray), get_actor=lambda name, namespace: ray.get_actor(name, of_job(namespace))
    )
    interface.TransferQueueController = SimpleNamespace(
        options=lambda *, namespace, **others: controller.options(namespace=of_job(namespace), **others)
    )
