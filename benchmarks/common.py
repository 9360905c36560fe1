"""What several benchmarks share: arguments, trainings, memory by kind of process, and small models."""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from grpo_verl_ext.runs.child_process import run_logged
from grpo_verl_ext.runs.verl_run import METRICS_FILE, TRAINER

MIB, GIB = 2**20, 2**30
FORKS_WORKERS = "forked_worker"
"""The process of this package that forks Ray's workers (``verl_plugin/cpu/forked_worker``)."""


def parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser that prints a module's docstring as it is, with an option of each default's type."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(description=description, formatter_class=as_it_is)
    for name, default in defaults.items():
        made.add_argument(f"--{name}", type=type(default), default=default)
    return made


def train(
    folder: Path, overrides: list[str], while_running: Callable[[], None] = lambda: None
) -> tuple[float, list[float], list[dict[str, float]]]:
    """Train without checkpoints and validation.

    Returns:
        Seconds until the command ended, those until each step was logged, and each step's metrics.
    """
    metrics, started = folder / "metrics.jsonl", time.time()
    metrics.unlink(missing_ok=True)
    logged: list[float] = []

    def look() -> None:
        lines = metrics.read_text().count("\n") if metrics.exists() else 0
        logged.extend([time.time() - started] * (lines - len(logged)))
        while_running()

    fixed = ["trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"]
    fixed += ["trainer.logger=[console,file]", f"hydra.run.dir={folder / 'hydra'}"]
    run_logged(
        [sys.executable, *TRAINER, *fixed, *overrides],
        folder / "verl.log",
        environment={**os.environ, METRICS_FILE: str(metrics)},
        while_running=look,
    )
    ended = time.time() - started
    records = [json.loads(line)["data"] for line in metrics.read_text().splitlines()]
    return ended, [*logged, *[ended] * (len(records) - len(logged))], records


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


def memory(processes: Iterable[psutil.Process], measure: str) -> Counter[str]:
    """Return the bytes of the processes by kind: ``uss``, shared with no other, or ``pss``, by share."""
    found = Counter[str]()
    for process in processes:
        try:
            found[kind(process)] += getattr(process.memory_full_info(), measure)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def own_memory(name: str) -> int:
    """Return an entry of Linux' status of this process, such as ``VmRSS``, in bytes."""
    return 1024 * int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0])


def grown(call: Callable[[], object]) -> int:
    """Return by how many bytes the resident set grows in a call, by the kernel's high-water mark."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = own_memory("VmRSS")
    call()
    return max(own_memory("VmHWM") - before, 0)


def save_model(
    folder: str | Path, architecture: str, words: int, width: int, feed_forward: int, **config: Any
) -> int:
    """Save a causal language model with random float32 weights; return the number of its parameters."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config |= {"vocab_size": words, "hidden_size": width, "intermediate_size": feed_forward}
    settings = AutoConfig.for_model(architecture, tie_word_embeddings=True, dtype="float32", **config)
    model = AutoModelForCausalLM.from_config(settings)
    model.save_pretrained(folder)
    return int(model.num_parameters())


def worker_config(folder: str, precision: str = "fp32", **engine: Any) -> Any:
    """Return verl's configuration of an FSDP2 worker, all of it in fp32, or computing in bf16."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers import config as verls

    dtypes = {"param_dtype": precision, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    model = verls.HFModelConfig(
        path=folder, load_tokenizer=False, use_remove_padding=False,
        enable_gradient_checkpointing=False, override_config={"attn_implementation": "sdpa"},
    )  # fmt: skip
    engine |= {"strategy": "fsdp2", "use_torch_compile": False, "mixed_precision": dtypes}
    parts = {"optimizer_config": verls.FSDPOptimizerConfig(lr=1e-6), "checkpoint_config": CheckpointConfig()}
    parts |= {"model_config": model, "engine_config": verls.FSDPEngineConfig(**engine)}
    return verls.TrainingWorkerConfig(model_type="language_model", **parts)
