"""Run verl's real trainer on the embedded task in a separate process: Ray, FSDP2, vLLM, TransferQueue."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from grpo_verl_ext.runs.verl_run import Metrics, read_metrics


@pytest.fixture(scope="session", autouse=True)
def chain_sum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In the cache folder TRAININGS_CACHE, or made once in one that the processes of a session share."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("there is no C++ compiler, which vLLM's CPU build needs to start: apt-get install g++")
    if (free := psutil.virtual_memory().available / 2**30) < 6:
        pytest.skip(f"a training takes 5 GiB of memory, and {free:.1f} are free here")
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONFAULTHANDLER", "1")  # a process that crashes writes where it was
        patch.setenv("GRPO_VERL_EXT_CACHE", os.environ.get("TRAININGS_CACHE", str(shared / "cache")))
        command = [Path(sys.executable).with_name("grpo-verl-ext"), "prepare", "chain_sum", "--seed", "1"]
        subprocess.run(command, check=True, timeout=600)
        yield


CRASH = re.compile(r".*(Fatal Python error|malloc\(\)|free\(\)|corrupted|terminate called)")
"""The first line of Python's fault handler, of glibc's allocator, or of C++."""


@dataclass
class Run:
    """A finished run: exit status, output, and verl's metrics by step."""

    status: int
    log: Path
    metrics: Metrics

    def require_success(self) -> "Run":
        assert self.status == 0, self._why()
        return self

    def _why(self) -> str:
        """What a process wrote when it crashed, and the end of the log."""
        said = self.log.read_text(errors="replace")
        crash = CRASH.search(said)
        return (said[crash.start() : crash.start() + 8000] + "\n…\n" if crash else "") + said[-4000:]

    def series(self, key: str) -> list[float]:
        """Values of one metric in the order of steps; at least one."""
        found = [values[key] for _, values in sorted(self.metrics.items()) if key in values]
        assert found, f"no step has {key}"
        return found


PRESETS = ("+platform=cpu", "+task=chain_sum")
UNTESTED = ("trainer.val_before_train=false", "trainer.test_freq=-1")
OURS = (str(Path(sys.executable).with_name("grpo-verl-ext")), "train")
"""The command of this package, whose first argument is a preset."""


def train(
    *overrides: str,
    algo: str,
    folder: Path,
    timeout: int = 900,
    presets: Sequence[str] = PRESETS,
    program: Sequence[str] = (),
    **env: str,
) -> Run:
    """Train to the end in ``folder`` and read the metrics."""
    log = folder / "verl.log"
    driver = started(*overrides, algo=algo, folder=folder, log=log, presets=presets, program=program, **env)
    try:
        status = driver.wait(timeout)
    finally:
        driver.kill()
    return Run(status, log, read_metrics(folder.glob("metrics.jsonl")))


def started(
    *overrides: str,
    algo: str,
    folder: Path,
    log: Path,
    presets: Sequence[str] = PRESETS,
    program: Sequence[str] = (),
    **env: str,
) -> subprocess.Popen[bytes]:
    """verl's driver, whose output goes to ``log`` and whose metrics to ``folder/metrics.jsonl``.

    Without a ``program`` it is verl's own.
    """
    verls = (sys.executable, "-m", "verl.trainer.main_ppo", f"+algo={algo}")
    command = [
        *((*program, algo) if program else verls),
        *(*presets, "trainer.logger=[console,file]"),
        *(f"trainer.default_local_dir={folder / 'checkpoints'}", f"hydra.run.dir={folder / 'hydra'}"),
        *overrides,
    ]
    environment = {**os.environ, "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"), **env}
    with log.open("w") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def wait_for(condition: Callable[[], bool], *, process: subprocess.Popen[bytes], seconds: float) -> None:
    """Poll until the condition holds; fails when the process ends or the time is over."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the run ended early with status {process.returncode}"
        assert time.monotonic() < end, f"nothing after {seconds} s"
        time.sleep(0.5)


def killed_after(step: int, *overrides: str, algo: str, folder: Path) -> tuple[Run, list[psutil.Process]]:
    """What the driver had logged when SIGKILL met it, and the processes that it had started."""
    log, metrics = folder / "killed.log", folder / "metrics.jsonl"
    driver = started(*overrides, algo=algo, folder=folder, log=log)
    try:
        wait_for(lambda: step in read_metrics(folder.glob(metrics.name)), process=driver, seconds=600)
        processes = psutil.Process(driver.pid).children(recursive=True)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    return Run(driver.returncode, log, read_metrics([metrics])), processes
