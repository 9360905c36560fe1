"""Test that a report can be sent to a tracker of verl's: a real wandb, offline, and a real tensorboard."""

import json
from pathlib import Path

import pytest
import wandb
from typer.testing import CliRunner

from grpo_verl_ext import preflight
from grpo_verl_ext.cli import app
from grpo_verl_ext.launch.tracker import TrackerError, pusher
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.compose import composed

KEPT = Path(__file__).parents[2] / "examples" / "ablations" / "results" / "gvpo_terms_chain_sum"
PAIR = "without_covariance − all"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No key of the machine's, and a folder of one's own."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "TENSORBOARD_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    wandb.teardown()  # it keeps what it has read
    return tmp_path


def report(*words: str) -> tuple[int, str]:
    made = CliRunner().invoke(app, ["ablate", "report", str(KEPT), "--output", "made", *words])
    return made.exit_code, made.output


def test_the_numbers_of_the_report_are_those_in_tensorboard(alone: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    status, printed = report("--tracker", "tensorboard")
    assert status == 0, printed
    sent = EventAccumulator(str(alone / "tensorboard_log" / KEPT.name / "report"))
    sent.Reload()
    made = json.loads((alone / "made" / "report.json").read_text())
    (verdict,) = (each for each in made["verdicts"] if f"{each['variant']} − {each['against']}" == PAIR)
    (point,) = sent.Scalars(f"verdict/{PAIR}/final/difference")
    assert point.value == pytest.approx(verdict["difference"], rel=1e-6)  # float32
    (row,) = (
        each
        for each in made["rows"]
        if (each["metric"], each["measure"], each["variant"]) == ("gold_response/right", "final", "all")
    )
    curve = sent.Scalars("gold_response/right/all")
    assert [each.step for each in curve] == [*range(1, 17)]
    assert curve[-1].value == pytest.approx(row["mean"], rel=1e-6)


def test_wandb_offline(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own file has the grid and the verdicts' sentences."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    status, printed = report("--tracker", "wandb")
    assert status == 0, printed
    wandb.teardown()  # its service answers that the run has ended, and writes the file after that
    (file,) = alone.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    assert f"verdict/{PAIR}/final/difference".encode() in content
    assert b"without_covariance" in content


def test_no_key_no_package_no_such_tracker(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the report, in one line each; nothing is written."""
    for name, said in (
        (
            "wandb",
            "--tracker is wandb, but wandb has no key here. Type: wandb login, or WANDB_MODE=offline in",
        ),
        ("clearml", "--tracker is clearml, but clearml is not installed here. Type: pip install clearml"),
        ("console", "--tracker is console; valid are wandb, mlflow, "),
    ):
        status, printed = report("--tracker", name)
        assert status == 1
        assert said in printed
        assert not (alone / "made").exists()
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    wandb.teardown()
    assert pusher("wandb")


def test_one_that_verl_goes_on_without(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl drops a tracker that it cannot start, and would send nothing."""
    monkeypatch.setattr("verl.utils.tracking.Tracking.__init__", lambda own, **_: setattr(own, "logger", {}))
    with pytest.raises(TrackerError, match="--tracker is tensorboard, which could not be started"):
        pusher("tensorboard")("project", "run", {}, [])
    assert not any(alone.iterdir())


@pytest.mark.usefixtures("alone")
def test_a_grid_is_refused_for_a_logger_without_its_key() -> None:
    """One training is only warned."""
    group = ["actor_rollout_ref.rollout.n=8", "actor_rollout_ref.rollout.name=vllm"]
    config = composed(["+algo=grpo", *group, "trainer.logger=[console,wandb]"])
    preflight.check_training(config)
    with pytest.raises(SettingError, match=r"trainer\.logger=\[console,wandb\], but wandb has no key here"):
        preflight.check_run_of_many(config)
