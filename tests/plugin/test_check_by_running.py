"""Test GRPO_VERL_EXT_CHECK=1: a script reports on its training and starts nothing."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from processes import run_program

from grpo_verl_ext import __version__, driver
from grpo_verl_ext.preflight import report
from grpo_verl_ext.verl_plugin.compose import composed

FIRST = f"grpo_verl_ext {__version__}: checked, not trained (GRPO_VERL_EXT_CHECK=1)"
ACTOR = "actor_rollout_ref.actor"
SCRIPT = f"""
set -euo pipefail
ALGORITHM=(algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False)
for split in train val; do
    DATA+=("data.${{split}}_files=/nowhere/$split.parquet")
done
python3 -m verl.trainer.main_ppo "${{ALGORITHM[@]}}" "${{DATA[@]}}" \\
    {ACTOR}.use_kl_loss=True actor_rollout_ref.model.path=Qwen/Qwen3-8B {ACTOR}.optim.lr=1e-6 \\
    data.train_batch_size=1024 {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.ppo_epochs=2 \\
    {ACTOR}.use_dynamic_bsz=True actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 "$@"
"""


def run_in(
    folder: Path, *words: str, program: Sequence[str] = ("bash", "-c", SCRIPT, "script")
) -> "subprocess.CompletedProcess[str]":
    """Run a script in a home of its own, with nothing of verl's or Ray's in the environment."""
    (folder / "ray").mkdir()
    own = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
    own |= {"HOME": str(folder), "RAY_TMPDIR": str(folder / "ray"), "GRPO_VERL_EXT_CHECK": "1"}
    own["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    finished = run_program([*program, *words], cwd=folder, env=own)
    assert list((folder / "ray").iterdir()) == [], "a Ray was started"
    return finished


@pytest.mark.ci
def test_a_script_with_an_array_and_a_loop(tmp_path: Path) -> None:
    finished = run_in(tmp_path, "+algo@_global_=gvpo")
    said = finished.stdout.splitlines()
    assert finished.returncode == 2, finished.stderr  # the estimator grpo beside GVPO's loss
    assert said[0] == FIRST
    assert "error settings" in said
    assert sum(line.startswith("  data.") and "not on this machine" in line for line in said) == 2
    assert "  trainer.v1.trainer_mode: sync → grpo_ext_sync" in said
    assert f"  {ACTOR}.policy_loss.gvpo_beta: no key of verl's → 0.1" in said
    assert [line for line in said if line.startswith("delete")] == [
        "delete from the script: algorithm.adv_estimator=grpo (the preset has gvpo)",
        f"delete from the script: {ACTOR}.use_kl_loss=True (the preset has false)",
    ]
    assert "  type: the same command without algorithm.adv_estimator=grpo" in said


@pytest.mark.ci
def test_a_script_without_anything_of_the_package(tmp_path: Path) -> None:
    finished = run_in(tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == [FIRST, "this training names nothing of grpo_verl_ext"]


@pytest.mark.ci
def test_a_driver_that_never_validates(tmp_path: Path) -> None:
    fully_async = (sys.executable, "-m", "verl.experimental.fully_async_policy.fully_async_main")
    said = run_in(tmp_path, "+algo=grpo", program=fully_async).stdout.splitlines()
    assert said[0] == FIRST
    assert any(line.startswith("updates per rollout: not known") for line in said)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_VERL_EXT_CHECK", "1")


def started(config: DictConfig) -> None:
    """Through both of the driver's hooks, which only return where a training would start."""

    def train(_config: DictConfig) -> None:
        pytest.fail("a training was started")

    main_ppo = SimpleNamespace(run_ppo=train)
    driver._patch("run_ppo", main_ppo)
    main_ppo.run_ppo(config)


@pytest.mark.usefixtures("asked")
def test_an_error_of_the_check_starts_no_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "print_findings", lambda *_: 1 / 0)
    with pytest.raises(SystemExit) as ended:
        started(composed(["+algo=grpo"]))
    assert ended.value.code == 2
    assert "the check itself failed, ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["", "0"])
def test_a_variable_that_says_no(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_VERL_EXT_CHECK", value)
    trained: list[object] = []
    main_ppo = SimpleNamespace(run_ppo=trained.append)
    driver._patch("run_ppo", main_ppo)
    main_ppo.run_ppo(composed(["algorithm.adv_estimator=grpo"]))
    assert len(trained) == 1


@pytest.mark.usefixtures("asked")
def test_without_a_preset_nothing_is_said_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        started(composed([f"{ACTOR}.policy_loss.loss_mode=dapo"]))
    said = capsys.readouterr().out
    assert "responses that an update needs together: not needed" in said
    assert "+algo@_global_=" not in said.partition("findings:")[2]


MEET = [
    ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=8"], "in one micro-batch"),
    ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=2", "trainer.n_gpus_per_node=4"], "in the micro-batches of all"),
    ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=3"], "one more forward pass"),
    ([f"{ACTOR}.ppo_mini_batch_size=1024"], "no forward pass"),
    (["model_engine=megatron"], "not measured between the updates"),
    (["trainer.v1.trainer_mode=sync"], "not seen to by this trainer"),
]


@pytest.mark.parametrize(("words", "said"), MEET)
def test_where_the_responses_of_a_prompt_meet(words: list[str], said: str) -> None:
    fixed = ["+algo=gvpo", "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.rollout.name=vllm"]
    assert said in report._meeting(composed([*fixed, *words]))


Reported = Callable[[list[str]], list[str]]


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reported:
    """What the report on a command says beside its findings."""

    def said(words: list[str]) -> list[str]:
        hydra = SimpleNamespace(overrides=SimpleNamespace(task=words))
        config = composed(words)
        monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
        monkeypatch.setattr(HydraConfig, "get", lambda: hydra)
        monkeypatch.setattr(report, "findings_with_verls", lambda *_: [])
        report.report(config)
        return capsys.readouterr().out.splitlines()[1:]

    return said


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["data.train_batch_size=512"], "2 "),
        (["data.train_batch_size=500"], "2 "),
        (["data.train_batch_size=128"], "1 "),
        (["data.train_batch_size=512", f"{ACTOR}.ppo_epochs=3"], "6 "),
        (["trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=4"], "4 "),
        (["data.train_batch_size=null"], "not known"),
    ],
)
def test_the_updates_on_a_rollout(words: list[str], count: str, reported: Reported) -> None:
    assert reported(["+algo=ppo", *words])[0].startswith(f"updates per rollout: {count}")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (f"{ACTOR}.policy_loss.gvpo_beta=0.3", None),
        ("trainer.v1.trainer_mode=grpo_ext_colocate_async", None),
        ("trainer.v1.trainer_mode=colocate_async", "grpo_ext_sync"),
        (f"++{ACTOR}.entropy_coeff=0.01", "0"),
        (f"~{ACTOR}.kl_loss_type", "low_var_kl"),
        (f"{ACTOR}.policy_loss={{loss_mode:vanilla}}", f"{ACTOR}.policy_loss.loss_mode=gvpo"),
    ],
)
def test_lines_to_delete(word: str, said: str | None, reported: Reported) -> None:
    expected = [] if said is None else [f"delete from the script: {word} (the preset has {said})"]
    found = reported(["+algo=gvpo", word])
    assert [line for line in found if line.startswith("delete")] == expected
