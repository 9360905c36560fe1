"""Measure the peak memory of a run over all of its processes and attempts."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from grpo_verl_ext.runs.child_process import marked
from grpo_verl_ext.utils.files import write_whole

EVERY_SECONDS = 5.0
"""Reading a large process's pages costs the kernel time: once a second took a quarter of a core."""


class PeakMemory:
    """The largest memory of all processes that was seen, kept in ``peak_memory_bytes`` of the run folder.

    A page that several processes share counts once: proportional set size.
    """

    def __init__(
        self, folder: Path, measure: Callable[[], int] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = folder / "peak_memory_bytes"
        self._measure = measure or (lambda: memory_of(str(folder.resolve())))
        self._clock = clock
        self._next = clock()
        self.bytes = int(self._file.read_text()) if self._file.exists() else 0

    def look(self) -> None:
        """Measure, at most once in `EVERY_SECONDS`."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_SECONDS
        seen = self._measure()
        if seen > self.bytes:
            self.bytes = seen
            write_whole(self._file, str(seen))


def memory_of(mark: str) -> int:
    """Return the bytes of the processes that a run marked (`marked`)."""
    return sum(map(_share, marked(mark)))


def _share(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0  # it has ended meanwhile
