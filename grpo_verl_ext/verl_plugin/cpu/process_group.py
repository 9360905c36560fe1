"""Let verl's training processes form their process group on CPU.

Patch of ``verl.utils.distributed.initialize_global_process_group_ray``: verl builds the backend string
``cpu:gloo,<device>:<backend>``, which torch refuses for the device ``cpu`` (duplicate device type). verl's
workers call it without a backend, so no setting could change it.
"""

import functools
from typing import Any


def patch(distributed: Any) -> None:
    """Make ``gloo`` the default backend when the module is imported, before other modules bind the name."""
    original = distributed.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize_global_process_group_ray(
        timeout_second: int | None = None, backend: str | None = None
    ) -> None:
        original(timeout_second, backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray
