"""End a training that waits for responses of a process that died.

Patch of ``ReplayBuffer._wait_for_next_poll``, with which verl's trainer waits for its rollout. It asks
TransferQueue every two seconds whether the responses are there; those of an agent loop's worker that was
killed, by the out-of-memory killer for one, are "running" for ever, and the training stands still without a
word. verl has no hook there but the whole sampler, which a user may want for another purpose.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

PARTS = ("agent_loop_worker_", "reward_loop_worker_", "vllm_server_", "sglang_server_", "TransferQueue")
"""Beginnings of the names of verl's actors that work on a rollout; those of users are not looked at."""


class LostPartError(RuntimeError):
    """A part of the training died by itself; the message names it."""


def patch(replay_buffer: Any) -> None:
    """Look for dead parts whenever the trainer has waited."""
    original = replay_buffer.ReplayBuffer._wait_for_next_poll

    @functools.wraps(original)
    def _wait_for_next_poll(self: Any, *args: Any, **kwargs: Any) -> float:
        waited: float = original(self, *args, **kwargs)
        check_parts()
        return waited

    replay_buffer.ReplayBuffer._wait_for_next_poll = _wait_for_next_poll


def check_parts() -> None:
    """Takes milliseconds: one question to Ray's control store.

    Raises:
        LostPartError: one of `PARTS` died, and nobody had asked it to.
    """
    for actor in _died_by_themselves():
        if actor["Name"].startswith(PARTS):
            raise LostPartError(
                f"{actor['Name']} ({actor['ActorClassName']}, process {actor['Pid']} on "
                f"{actor['Address']['IPAddress']}) died, and the training waits for its responses. "
                f"{actor['DeathCause'].actor_died_error_context.error_message} "
                f"Correct that, and type the same command again: it goes on from the last checkpoint."
            )


def _died_by_themselves() -> Iterator[dict[str, Any]]:
    """Actors of this job; with neither ``ray.kill`` nor the end of the last reference to them."""
    import ray
    from ray._private import state  # ray.util.state needs the dashboard, which may be off

    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    for actor in state.actors(job_id=job, actor_state_name="DEAD").values():
        cause = actor["DeathCause"].actor_died_error_context
        if cause.reason in (cause.WORKER_DIED, cause.NODE_DIED):
            yield actor
