"""Test one training in its folder: verl's command line, attempts, whether it is finished, any folder name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.runs.verl_run import VerlRun, hydra_value
from grpo_verl_ext.verl_plugin.compose import composed


def test_the_folder_decides_where_verl_keeps_what_the_run_needs(tmp_path: Path) -> None:
    given = ["trainer.total_training_steps=9"]
    assert VerlRun(tmp_path, given, steps=2).arguments() == [
        f"trainer.rollout_data_dir={tmp_path}/rollouts",
        f"trainer.validation_data_dir={tmp_path}/validation",
        *given,
        "trainer.logger=[console,file]",
        "trainer.total_training_steps=2",
        f"trainer.default_local_dir={tmp_path}/checkpoints",
        "trainer.resume_mode=auto",
        f"hydra.run.dir={tmp_path}/hydra",
    ]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], ["console", "file"]),
        (['trainer.logger=["console", "wandb"]'], ["console", "wandb", "file"]),
        (["++trainer.logger=wandb"], ["wandb", "file"]),
        (["trainer.logger=[${oc.env:HOME}]"], ["${oc.env:HOME}", "file"]),
        (["trainer.logger=[]"], ["file"]),
        (["trainer.logger=[file,mlflow]"], ["file", "mlflow"]),
        (["trainer.logger=[file]", "trainer.logger=[console,swanlab]"], ["console", "swanlab", "file"]),
    ],
)
def test_a_tracker_never_takes_the_place_of_the_file(tmp_path, given, found) -> None:
    """A run is resumed, and a grid reported, from the file; the names are those of the grid and the run."""
    run = VerlRun(tmp_path, given, steps=2, tracked_as=("grid,lr", "grpo/seed-1"))
    trainer = composed([word for word in run.arguments() if not word.startswith("hydra.")]).trainer
    assert OmegaConf.to_container(trainer.logger) == found
    assert (trainer.project_name, trainer.experiment_name) == ("grid,lr", "grpo/seed-1")


def test_finished_is_the_last_step_saved_and_logged(tmp_path: Path) -> None:
    run = VerlRun(tmp_path, [], steps=2)
    run.last_checkpoint.mkdir(parents=True)
    assert not run.is_finished()
    (tmp_path / "attempt-1.jsonl").write_text(json.dumps({"step": 1, "data": {}}) + "\n")
    assert not run.is_finished()
    # A validation of the last step before it is trained: verl validates what it resumes from.
    (tmp_path / "attempt-9.jsonl").write_text(json.dumps({"step": 2, "data": {"val-core/a": 9}}) + "\n")
    assert not run.is_finished()
    logged = {"val-core/a": 10, "training/global_step": 2}
    (tmp_path / "attempt-10.jsonl").write_text(json.dumps({"step": 2, "data": logged}) + "\n")
    assert run.is_finished()
    run.last_checkpoint.rmdir()
    assert not run.is_finished()
    assert run.metrics() == {1: {}, 2: logged}, "attempts are ordered by number, not by letter"


def test_a_file_that_was_moved_away_is_not_an_attempt(tmp_path: Path) -> None:
    run = VerlRun(tmp_path, [], steps=2)
    (tmp_path / "attempt-1.bad.jsonl").write_text("{\n")
    (tmp_path / "attempt-3.log").touch()
    (tmp_path / "attempt-3.old.log").touch()
    assert run.metrics() == {}
    assert run.next_attempt() == tmp_path / "attempt-4"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VerlRun:
    """A run of five steps by a stand-in for verl, which saves steps 2, 4 and 5."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "helpers" / "fake_verl"))
    return VerlRun(tmp_path / "run", ["+algo=a", "data.seed=1"], steps=5)


@pytest.mark.parametrize(
    ("killed", "step"),
    [("FAKE_KILL", 4), ("FAKE_KILL", 5), ("FAKE_KILL_SAVING", 4)],
    ids=["logging", "logging the last", "saving"],
)
@pytest.mark.parametrize("kept", [[], ["trainer.max_actor_ckpt_to_keep=1"]], ids=["all kept", "one kept"])
def test_a_step_that_was_not_saved_and_logged_is_trained_again(fake, monkeypatch, killed, step, kept) -> None:
    """verl may have removed the checkpoint before, and its tracker may still name one that it removed."""
    run = replace(fake, overrides=[*fake.overrides, *kept])
    monkeypatch.setenv(killed, str(step))
    with pytest.raises(ProcessFailedError, match=r"SIGKILL \(Killed\)"):
        run.go()
    assert (run.is_finished(), max(run.metrics())) == (False, step - 1)
    monkeypatch.delenv(killed)
    run.go()
    assert run.is_finished()
    unbroken = replace(run, folder=run.folder.with_name("unbroken"))
    unbroken.go()
    assert run.metrics() == unbroken.metrics()
    if killed == "FAKE_KILL":
        aside = run.checkpoints / f"unlogged-step-{step}-before-attempt-2"
        assert aside.is_dir(), "nothing is deleted"


def test_a_tracker_that_was_being_written_does_not_stop_a_run(fake: VerlRun) -> None:
    (fake.checkpoints / "global_step_2" / "actor").mkdir(parents=True)
    record = {"step": 2, "data": {"training/global_step": 2}}
    (fake.folder / "attempt-1.jsonl").write_text(json.dumps(record) + "\n")
    tracker = fake.checkpoints / "latest_checkpointed_iteration.txt"
    tracker.touch()
    fake.choose_checkpoint("attempt-2")
    assert tracker.read_text() == "2"


def test_a_run_that_ends_well_before_its_last_step_has_failed(fake, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_END", "3")
    said = r"status 0 after step 3 of 5; .* Type: trainer\.total_epochs=5"
    with pytest.raises(ProcessFailedError, match=said):
        fake.go()
    monkeypatch.delenv("FAKE_END")
    fake.go()
    assert fake.is_finished()


PARSER = OverridesParser.create()


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=12))
@example("/runs/grpo,lr=1e-3/seed-1")
@example("it's here")
@example("\\'")
@example("a\\")
@example("${x}")
@example("null")
@settings(derandomize=True, deadline=None, max_examples=100)
def test_hydra_reads_back_the_text(text: str) -> None:
    # As in an absolute path: words such as null and numbers stand for themselves only there.
    value = PARSER.parse_override(f"key={hydra_value('/' + text)}").value()
    assert str(value) == "/" + text
