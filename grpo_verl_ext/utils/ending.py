"""Say how a child process ended."""

from __future__ import annotations

import signal


def ending(status: int) -> str:
    """Return ``status 1``, or for -4, which stands for a signal, ``SIGILL (Illegal instruction)``."""
    if status >= 0:
        return f"status {status}"
    names = {each.value: each.name for each in signal.Signals}
    return f"{names.get(-status, f'signal {-status}')} ({signal.strsignal(-status)})"
