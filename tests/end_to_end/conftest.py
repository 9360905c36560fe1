"""Run verl's real trainer: Ray, FSDP2, vLLM and TransferQueue, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from verl_runs import Run, Train

from grpo_verl_ext.runs.metrics import read_metrics


@pytest.fixture(scope="session", autouse=True)
def chain_sum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The embedded task, made once for the session in a cache folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_VERL_EXT_CACHE", str(tmp_path_factory.mktemp("cache")))
        command = [Path(sys.executable).with_name("grpo-verl-ext"), "prepare", "chain_sum", "--seed", "1"]
        subprocess.run(command, check=True, timeout=600)
        yield


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    """verl's command line for a run in ``tmp_path``."""

    def made(*overrides: str, algo: str = "grpo") -> list[str]:
        return [
            *(sys.executable, "-m", "verl.trainer.main_ppo"),
            *(f"+algo={algo}", "+platform=cpu", "+task=chain_sum", "trainer.logger=[console,file]"),
            f"trainer.default_local_dir={tmp_path / 'checkpoints'}",
            f"hydra.run.dir={tmp_path / 'hydra'}",
            *overrides,
        ]

    return made


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl")}


@pytest.fixture
def train(tmp_path: Path, command: Callable[..., list[str]], environment: dict[str, str]) -> Train:
    """Train to the end and read the metrics."""

    def run(*overrides: str, algo: str = "grpo", timeout: int = 600, **more: str) -> Run:
        log = tmp_path / "verl.log"
        with log.open("w") as output:
            finished = subprocess.run(
                command(*overrides, algo=algo),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, **more},
                timeout=timeout,
                check=False,
            )
        return Run(finished.returncode, log, read_metrics(tmp_path.glob("metrics.jsonl")))

    return run
