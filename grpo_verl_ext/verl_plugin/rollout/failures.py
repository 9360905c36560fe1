"""Tell the trainer's process of an error after which a training must not go on.

verl logs an error of a reward and trains on the responses that are left. An error that is reported here is
raised by the watchdog of the trainer's process (`patches.watchdog`).
"""


def report(error: Exception) -> None:
    """Keep the error's message for the trainer of this Ray job; without Ray nobody waits for it."""
    from ray.experimental.internal_kv import _internal_kv_put

    if key := _key():
        _internal_kv_put(key, str(error).encode())


def reported() -> str | None:
    """Return the message that was reported last in this job; None: there is none."""
    from ray.experimental.internal_kv import _internal_kv_get

    key = _key()
    message = _internal_kv_get(key) if key else None
    return None if message is None else message.decode()


def forget() -> None:
    """Remove what an earlier training of this job reported."""
    from ray.experimental.internal_kv import _internal_kv_del

    if key := _key():
        _internal_kv_del(key)


def _key() -> bytes | None:
    import ray  # this module is loaded in processes that need no Ray

    if not ray.is_initialized():
        return None
    return f"grpo_verl_ext/failure/{ray.get_runtime_context().get_job_id()}".encode()
