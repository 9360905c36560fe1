"""What the processes of a training are to verl, Ray and vLLM."""

from pathlib import Path

import psutil

from grpo_verl_ext.runs.verl_run import TRAINER


def kind(process: psutil.Process) -> str:
    """Ray's actors are named by their class, its own processes by their program."""
    command = process.cmdline()
    if TRAINER[1] in command:
        return "driver"
    title = command[0] if command else process.name()
    if title.startswith("ray::"):
        actor = title.removeprefix("ray::").split(".")[0]
        return "Ray's idle worker" if actor == "IDLE" else actor
    if title.startswith("VLLM::"):
        return "EngineCore"
    scripts = [Path(argument).stem for argument in command[1:3] if argument.endswith(".py")]
    return f"Ray's {(scripts or [process.name()])[0]}"
