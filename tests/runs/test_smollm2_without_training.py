"""Test examples/smollm2.sh around its training: arguments, summary, memory."""

import json
import os
import sys
from importlib import import_module as module
from pathlib import Path

import psutil
import pytest

from grpo_verl_ext.runs.verl_run import VerlRun

EXAMPLES = Path(__file__).parents[2] / "examples"
ACCURACY = "val-core/smollm2_max/acc/mean@1"
PROMPTS = ("max(11,13)=", "max(43,40)=", "max(50,51)=", "max(18,17)=")
WANTED = ("13", "43", "51", "18")


pytestmark = pytest.mark.usefixtures("examples")


def finished_run(folder: Path) -> VerlRun:
    """As verl leaves it after two steps: 1 of 4 right before, 3 of 4 after, rows in another order."""
    (folder / "validation").mkdir(parents=True)
    answers = {0: ("13", "40", "50", "8"), 2: ("13", "43", "51", "8")}
    for step, said in answers.items():
        rows = [
            {"input": asked, "output": answer, "gts": wanted, "score": float(answer == wanted), "step": step}
            for asked, wanted, answer in zip(PROMPTS, WANTED, said, strict=True)
        ]
        lines = [json.dumps(row | {"uid": f"{n}"}) + "\n" for n, row in enumerate(rows)]
        (folder / "validation" / f"{step}.jsonl").write_text("".join(lines if step else reversed(lines)))
    (folder / "rollouts").mkdir()
    # three prompts with two responses each, of which two are mixed in step 1, and one in step 2
    for step, scores in {1: (0, 1, 1, 0, 1, 1), 2: (0, 0, 1, 0, 1, 1)}.items():
        usual = {"input": "", "output": "", "step": step}
        rows = [usual | {"score": score, "uid": f"p{n // 2}_{n % 2}_0"} for n, score in enumerate(scores)]
        (folder / "rollouts" / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = [
        {"step": 0, "data": {ACCURACY: 0.25}},
        {"step": 1, "data": {"critic/score/mean": 0.3, "timing_s/step": 20.0}},
        {"step": 2, "data": {"critic/score/mean": 0.5, "timing_s/step": 30.0, ACCURACY: 0.75}},
    ]
    (folder / "attempt-1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in metrics))
    return VerlRun(folder, [], 2)


def test_the_summary_has_intervals_and_pairs_responses_by_prompt(tmp_path: Path) -> None:
    of = module("smollm2_summary")
    run = finished_run(tmp_path / "run")
    summary = of.summarize(run, peak_memory_bytes=3 * 2**29, algo="gvpo", seed=1, seconds=60.0)
    # Wilson, by hand: z² = 3.8415; centre (1 + z²/2)/(4 + z²), half width z √(¾ + z²/4)/(4 + z²)
    interval = {"low": 0.045587, "high": 0.699358}
    wanted = {"right": 1, "prompts": 4, "share": 0.25, **interval}
    assert summary["before"] == pytest.approx(wanted, abs=1e-6)
    assert (summary["after"]["right"], summary["after"]["share"]) == (3, 0.75)
    # differences 0, 1, 1, 0: mean ½, std √⅓, t₃ = 3.182446
    half = 3.182446 / 3**0.5 / 2
    wanted = {"mean": 0.5, "low": 0.5 - half, "high": 0.5 + half}
    assert summary["difference"] == pytest.approx(wanted, abs=1e-6)
    assert summary["test_accuracy_by_step"] == {0: 0.25, 2: 0.75}
    assert summary["training_score_by_step"] == {1: 0.3, 2: 0.5}
    assert summary["mixed_groups_by_step"] == {1: pytest.approx(2 / 3), 2: pytest.approx(1 / 3)}
    assert (summary["training_seconds"], summary["peak_memory_gib"]) == (50.0, 1.5)
    assert {"prompt": "max(43,40)=", "wanted": "43", "before": "40", "after": "43"} in summary["responses"]


def parsed(*words: str) -> tuple[object, list[str]]:
    of = module("quickstart_arguments")
    return of.parse_arguments(of.SMOLLM2, [*words])


def test_a_report_writes_its_files(tmp_path: Path) -> None:
    options, overrides = parsed("--steps", "2")
    run = finished_run(tmp_path / "run")
    said = module("smollm2").report(run, options, overrides, 9.0, 2**30)
    assert (run.folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((run.folder / "summary.json").read_text())
    assert (written["peak_memory_gib"], written["after"]["right"]) == (1.0, 3)
    assert "max(11,13)=" in said


def test_the_run_is_tested_whatever_the_users_overrides(tmp_path: Path) -> None:
    words = ["trainer.test_freq=-1", "actor_rollout_ref.rollout.val_kwargs.n=4"]
    options, overrides = parsed("--algo", "grpo", "--seed", "3", *words)
    run = module("smollm2").run_of(options, overrides, tmp_path)
    assert run.overrides[:2] == ["+algo@_global_=grpo", "+platform=cpu"]
    last = dict(word.split("=", 1) for word in run.overrides)
    assert last["+task"] == "smollm2_max"
    assert last["hydra.searchpath"] == f"[file://{EXAMPLES / 'tasks'}]"
    assert last["task.seed"] == "3"
    assert last["trainer.test_freq"] == "5"
    assert last["actor_rollout_ref.rollout.val_kwargs.n"] == "1"


def test_the_rank_has_as_many_threads_as_cores_unless_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    of = module("smollm2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    of.use_all_cores()
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    of.use_all_cores()
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_the_current_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["smollm2.py", "--out", "."])
    with pytest.raises(SystemExit, match="--out is "):
        module("smollm2").main()


def test_the_peak_is_the_largest_seen_over_all_attempts_measured_every_five_seconds(tmp_path: Path) -> None:
    seen, now = iter([5, 9, 7]), iter([0.0, 0.0, 0.0, 4.9, 5.0, 5.0, 10.0, 10.0])
    memory = module("smollm2").PeakMemory(tmp_path, lambda: next(seen), lambda: next(now))
    memory.look()
    # an attempt that is killed while it writes must leave a number: the file is replaced, not written over
    (tmp_path / "link").hardlink_to(tmp_path / "peak_memory_bytes")
    for _ in range(3):
        memory.look()
    assert (memory.bytes, [*seen]) == (9, [])
    assert (tmp_path / "link").read_text() == "5"
    again = module("smollm2").PeakMemory(tmp_path, lambda: 8)
    again.look()
    assert again.bytes == 9


def test_the_memory_of_a_run_is_that_of_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = module("smollm2")
    own = psutil.Process()
    monkeypatch.setattr(memory, "marked", lambda mark: [own, own] if mark == "run" else [])
    once = own.memory_full_info().pss
    assert memory.memory_of("run") == pytest.approx(2 * once, rel=0.1)
    assert memory.memory_of("other") == 0
