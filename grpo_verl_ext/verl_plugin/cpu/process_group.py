"""Let verl's training processes form their process group on the processor.

Patch of ``verl.utils.distributed.initialize_global_process_group_ray``: verl builds the backend string
``cpu:gloo,<device>:<backend>``, which torch refuses for the device ``cpu`` (duplicate device type). verl's
workers call it with no backend, so there is nothing to configure.
"""

import functools
from typing import Any


def patch(distributed: Any) -> None:
    """Make ``gloo`` the default backend; runs when the module is imported, before anybody binds the name."""
    original = distributed.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize_global_process_group_ray(
        timeout_second: int | None = None, backend: str | None = None
    ) -> None:
        original(timeout_second, backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray
