"""Processes that a run started and left behind, Ray's above all; known by a mark in their environment.

Ray's processes have no parent once the driver is gone, and their names are those of everybody's Ray. The
environment is handed down to each of them.
"""

from __future__ import annotations

import psutil

MARK = "GRPO_VERL_EXT_RUN"
"""Environment variable; its value is the run's folder."""


def marked(value: str) -> list[psutil.Process]:
    """Running processes of this user with that mark, ourselves excepted."""
    own = psutil.Process().pid
    return [process for process in psutil.process_iter() if process.pid != own and _has(process, value)]


def end_leftovers(value: str, *, patience: float) -> list[str]:
    """Wait ``patience`` seconds for marked processes to end by themselves, then end them.

    Returns:
        Names of those that had to be ended.
    """
    _, alive = psutil.wait_procs(marked(value), timeout=patience)
    names = [_name(process) for process in alive]
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in alive:
            try:
                end(process)
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(alive, timeout=5)
    return names


def _has(process: psutil.Process, value: str) -> bool:
    try:
        return bool(process.environ().get(MARK) == value and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False  # gone meanwhile, or not ours


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return f"process {process.pid}"
