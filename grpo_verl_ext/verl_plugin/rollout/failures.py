"""Tell the trainer's process of an error after which a training must not go on.

verl logs an error of a reward and trains on the responses that are left. An error that is reported here is
raised by the watchdog of the trainer's process (`patches.watchdog`).
"""

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put


def report(error: Exception) -> None:
    """Keep the error's message for the trainer of this Ray job; without Ray nobody waits for it."""
    if ray.is_initialized():
        _internal_kv_put(_key(), str(error).encode())


def reported() -> str | None:
    """Return the message that was reported last in this job; None: there is none."""
    message = _internal_kv_get(_key()) if ray.is_initialized() else None
    return None if message is None else message.decode()


def forget() -> None:
    """Remove what an earlier training of this job reported."""
    if ray.is_initialized():
        _internal_kv_del(_key())


def _key() -> bytes:
    return f"grpo_verl_ext/failure/{ray.get_runtime_context().get_job_id()}".encode()
