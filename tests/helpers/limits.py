"""Disks that are full and folders that are read-only, for real and without a privilege.

Root may write anywhere, so it puts that privilege down for a while; a file that grows beyond a limit ends as
on a full disk.
"""

import ctypes
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import SupportsFloat

import numpy as np

_VERSION = 0x20080522
_IGNORES_MODES = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files written in this block end with EFBIG beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """In this block nothing can be made, written or removed in the folder and those below it."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    modes = [path.stat().st_mode for path in folders]
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    found = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, found) == 0
    without = (ctypes.c_uint32 * 6)(*found)
    without[0] &= ~_IGNORES_MODES  # of this thread's effective set; it may take them up again
    for path in folders:
        path.chmod(0o555)
    try:
        assert libc.capset(header, without) == 0
        yield
    finally:
        assert libc.capset(header, found) == 0
        for path, mode in zip(folders, modes, strict=True):
            path.chmod(mode)


def full(file: Path) -> Path:
    """Let the file, or what `write_whole` makes of it first, be on a full device; returns it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_name(f".{file.name}.unfinished").symlink_to("/dev/full")
    return file


def largest(errors: Iterable[SupportsFloat]) -> float:
    """The largest error; of a NaN NaN, which no comparison holds for."""
    return float(np.max([*map(float, errors)]))
