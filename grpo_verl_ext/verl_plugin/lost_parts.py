"""End a training that has lost a process, and say which: verl restarts none, and may wait for one for ever.

Where verl waits for an answer of the dead actor itself, Ray raises, and verl ends with that error. Nothing
does where the answer was to come by another way: the responses of an agent loop's worker through
TransferQueue, say. So the driver asks Ray every `SECONDS` which actors have died.
"""

from __future__ import annotations

import _thread
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

SECONDS = 5.0
PATIENCE = 30.0
"""Seconds for verl's own error, which says more."""

PARTS = re.compile(
    r"(agent_loop_worker_|reward_loop_worker_|vllm_server_|sglang_server_|TransferQueue)|.*WorkerDict_\d+:\d+$"
)
"""Names of verl's actors. Those that a user starts beside them may die."""


NAME = "grpo_verl_ext lost parts"


def watch() -> None:
    """Look after the trainings that this process starts on Ray, as their driver, from now on."""
    if all(thread.name != NAME for thread in threading.enumerate()):
        threading.Thread(target=_look, name=NAME, daemon=True).start()


def _look() -> None:
    import ray

    first_seen: float | None = None
    while not ray.util.client.ray.is_connected():
        lost = _lost_now()
        first_seen = (first_seen or time.monotonic()) if lost else None
        if first_seen is not None and time.monotonic() > first_seen + PATIENCE:
            _end(lost)
            return
        time.sleep(SECONDS)
    print("grpo_verl_ext: lost parts are not looked for through ray://", file=sys.stderr, flush=True)


def _lost_now() -> list[str]:
    import ray

    try:
        return list(lost_parts()) if ray.is_initialized() else []
    except Exception:
        if ray.is_initialized():
            raise
        return []  # it was shut down meanwhile


def lost_parts() -> Iterator[str]:
    """Of this job, those that ended without `ray.kill` or the end of the last reference: what Ray knows."""
    import ray
    from ray._private import state  # ray.util.state asks the dashboard, which may be off

    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    for actor in state.actors(job_id=job, actor_state_name="DEAD").values():
        cause = actor["DeathCause"].actor_died_error_context
        if PARTS.match(actor["Name"]) and cause.reason in (cause.WORKER_DIED, cause.NODE_DIED):
            yield _described(actor, cause.error_message)


def _described(actor: dict[str, Any], why: str) -> str:
    return (
        f"{actor['Name']} ({actor['ActorClassName']}, process {actor['Pid']} on "
        f"{actor['Address']['IPAddress']}) died: {why}"
    )


def _end(lost: list[str]) -> None:
    print(
        f"grpo_verl_ext: {'; '.join(lost)} verl does not start it again and would wait for it; the training "
        f"ends here. Type the same command again: it goes on from the last checkpoint",
        file=sys.stderr,
        flush=True,
    )
    # Ray's handler in the driver: SystemExit in the main thread, also where it waits in ray.get.
    _thread.interrupt_main(signal.SIGTERM)
