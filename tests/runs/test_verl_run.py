"""Test one training in its folder: verl's command line, attempts, and whether it is finished."""

import json
from pathlib import Path

from grpo_verl_ext.runs.verl_run import VerlRun


def test_the_folder_decides_where_verl_keeps_what_the_run_needs(tmp_path: Path) -> None:
    run = VerlRun(tmp_path, ["trainer.logger=[file]", "trainer.total_training_steps=9"], steps=2)
    assert run.arguments() == [
        "trainer.logger=[console,file]",
        f"trainer.rollout_data_dir={tmp_path}/rollouts",
        f"trainer.validation_data_dir={tmp_path}/validation",
        "trainer.logger=[file]",
        "trainer.total_training_steps=9",
        "trainer.total_training_steps=2",
        f"trainer.default_local_dir={tmp_path}/checkpoints",
        "trainer.resume_mode=auto",
        f"hydra.run.dir={tmp_path}/hydra",
    ]


def test_finished_is_the_last_step_saved_and_logged(tmp_path: Path) -> None:
    run = VerlRun(tmp_path, [], steps=2)
    assert not run.is_finished()
    run.last_checkpoint.mkdir(parents=True)
    assert not run.is_finished()
    (tmp_path / "attempt-1.jsonl").write_text(json.dumps({"step": 1, "data": {}}) + "\n")
    assert not run.is_finished()
    (tmp_path / "attempt-10.jsonl").write_text(json.dumps({"step": 2, "data": {"a": 10}}) + "\n")
    (tmp_path / "attempt-9.jsonl").write_text(json.dumps({"step": 2, "data": {"a": 9}}) + "\n")
    assert run.is_finished()
    assert run.metrics() == {1: {}, 2: {"a": 10}}, "attempts are ordered by number, not by letter"
