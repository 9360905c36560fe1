"""Name the processes of a training by their role in verl, Ray and vLLM."""

from pathlib import Path

import psutil

from grpo_verl_ext.runs.verl_run import TRAINER

FORKS_WORKERS = "forked_worker"
"""The process of this package that forks Ray's workers (``verl_plugin/cpu/forked_worker``)."""


def kind(process: psutil.Process) -> str:
    """Return the kind of a process: the class of a Ray actor, or the program of Ray's own processes."""
    command = process.cmdline()
    if TRAINER[1] in command:
        return "driver"
    title = command[0] if command else process.name()
    if title.startswith("ray::"):
        actor = title.removeprefix("ray::").split(".")[0]
        return "Ray's idle worker" if actor == "IDLE" else actor
    if title.startswith("VLLM::"):
        return "EngineCore"
    if command[1:] and Path(command[1]).name == FORKS_WORKERS:
        return FORKS_WORKERS
    scripts = [Path(argument).stem for argument in command[1:3] if argument.endswith(".py")]
    return f"Ray's {(scripts or [process.name()])[0]}"
