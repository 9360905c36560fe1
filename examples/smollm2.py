"""Train a pretrained SmolLM2-135M and show what was learned; started by smollm2.sh."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from quickstart import (
    draw_learning_curve,
    go,
    open_run_folder,
    prepare,
    run_example,
    settings_of,
    write_summary,
)
from quickstart_arguments import SMOLLM2, Stages
from smollm2_summary import sentences, summarize

from grpo_verl_ext.runs.child_process import marked
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.files import write_whole

TASKS = Path(__file__).parent / "tasks"
EXPECTED_SECONDS = {"prepare": 75.0, "start": 90.0, "step": 20.0}
"""On 2 cores that nothing else uses."""
THREADS = "OMP_NUM_THREADS"
"""Threads of a rank, which are one under Ray unless the environment says otherwise."""
TESTED_EVERY = 5
MEASURED_EVERY = 5.0
"""Seconds. Reading a large process's pages costs the kernel time: once a second took a quarter of a core."""


def main() -> None:
    run_example(SMOLLM2, prepare_and_train)


def prepare_and_train(options: argparse.Namespace, overrides: list[str], out: Path) -> str:
    """Run all stages but the installation, write their results to ``out``, and return a report."""
    use_all_cores()
    stages = Stages(options.started)
    stages.begin(
        "prepare",
        f"Converting SmolLM2 and warm-starting it, seed {options.seed}",
        EXPECTED_SECONDS["prepare"],
        ", a few seconds if they are there already",
    )
    prepare(sys.executable, str(TASKS / "smollm2_model.py"))
    prepare(sys.executable, str(TASKS / "smollm2_max.py"), "--seed", str(options.seed))
    open_run_folder(out, settings_of(options, overrides))
    run, memory = run_of(options, overrides, out), PeakMemory(out)
    go(run, options.algo, stages, EXPECTED_SECONDS, on_metrics=lambda _: memory.look())
    return report(run, options, overrides, stages.seconds(), memory.bytes)


def use_all_cores() -> None:
    """Let the one rank use every core that this process may, unless the user has set `THREADS`."""
    os.environ.setdefault(THREADS, str(len(os.sched_getaffinity(0))))


def run_of(options: argparse.Namespace, overrides: list[str], out: Path) -> VerlRun:
    settings = (
        *(f"+algo@_global_={options.algo}", "+platform=cpu", f"hydra.searchpath=[file://{TASKS.resolve()}]"),
        *(f"+task={SMOLLM2.task}", f"task.seed={options.seed}"),
        *(f"trainer.save_freq={TESTED_EVERY}", "trainer.max_actor_ckpt_to_keep=1"),
    )
    # behind the user's: the report compares the first test with the last, one response a prompt
    for_the_report = (
        *("trainer.val_before_train=true", f"trainer.test_freq={TESTED_EVERY}"),
        "actor_rollout_ref.rollout.val_kwargs.n=1",
    )
    return VerlRun(out, [*settings, *overrides, *for_the_report], options.steps)


def report(
    run: VerlRun, options: argparse.Namespace, overrides: list[str], seconds: float, peak_memory_bytes: int
) -> str:
    """Write ``summary.json`` and the learning curve, and return the results in words."""
    summary = summarize(
        run,
        peak_memory_bytes=peak_memory_bytes,
        algo=options.algo,
        seed=options.seed,
        overrides=overrides,
        seconds=seconds,
    )
    curve = run.folder / "learning_curve.png"
    draw_learning_curve(run.metrics(), curve, f"SmolLM2-135M, max(a,b), {options.algo}, on the CPU platform")
    write_summary(summary, run.folder / "summary.json")
    return f"{sentences(summary)}\n{curve}"


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
        """Measure, at most once in `MEASURED_EVERY`."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + MEASURED_EVERY
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


if __name__ == "__main__":
    main()
