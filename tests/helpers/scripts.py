"""Start scripts of examples/train with a stand-in for python3, and look at what they would train."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from data_files import write_prompts
from omegaconf import DictConfig
from processes import run_program

from grpo_verl_ext.verl_plugin.compose import composed

TRAIN = Path(__file__).parents[2] / "examples" / "train"
Run = Callable[..., subprocess.CompletedProcess[str]]
Started = Callable[..., list[str]]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder for PATH with a python3 that notes its arguments in the file ``arguments``."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    stand_in = folder / "python3"
    stand_in.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" > '{folder}/arguments'\n")
    stand_in.chmod(0o755)
    return folder


@pytest.fixture
def run(notes: Path) -> Run:
    """Run a script of examples/train with the stand-in, and with no more of our environment than it needs."""

    def run(script: str, *arguments: str, **knobs: str) -> subprocess.CompletedProcess[str]:
        path = f"{notes}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": "/home/somebody", **knobs}
        return run_program(["bash", TRAIN / script, *arguments], env=environment, cwd=notes.parent)

    return run


@pytest.fixture
def started(run: Run, notes: Path) -> Started:
    """What a script starts python3 with."""

    def started(script: str, *arguments: str, **knobs: str) -> list[str]:
        found = run(script, *arguments, **knobs)
        assert found.returncode == 0, found.stderr
        return noted(notes)

    return started


@pytest.fixture(scope="module")
def files(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model and data that are there, as the values of MODEL and DATA."""
    data = tmp_path_factory.mktemp("data")
    model = shutil.copytree(policy, data / "model")
    # as Qwen2.5-Math-7B, which has the fewest of the scripts' models
    changed = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 4096}
    (model / "config.json").write_text(json.dumps(changed))
    for name in ("train", "test", "benchmarks"):
        write_prompts(data / f"{name}.parquet")
    return {"MODEL": str(model), "DATA": str(data)}


def noted(notes: Path) -> list[str]:
    return (notes / "arguments").read_text().split("\0")[:-1]


def configured(arguments: list[str]) -> DictConfig:
    assert arguments[:2] == ["-m", "verl.trainer.main_ppo"]
    return composed(arguments[2:])


def assert_that_verls_workers_would_accept(config: DictConfig, ranks: int) -> None:
    """What verl asserts only in its workers, where N_GPUS and N_NODES matter, or in its dynamic batching."""
    model = config.actor_rollout_ref
    # workers/engine_workers.py, train_mini_batch and init_model
    assert model.actor.ppo_mini_batch_size * model.rollout.n % ranks == 0
    assert ranks % model.rollout.tensor_model_parallel_size == 0
    # utils/seqlen_balancing.py, rearrange_micro_batches
    longest = config.data.max_prompt_length + config.data.max_response_length
    limits = [
        model.actor.ppo_max_token_len_per_gpu,
        model.rollout.log_prob_max_token_len_per_gpu,
        model.ref.log_prob_max_token_len_per_gpu,
        config.critic.ppo_max_token_len_per_gpu,
    ]
    assert min(limits) >= longest
    # every update has as many prompts
    assert config.data.train_batch_size % model.actor.ppo_mini_batch_size == 0
