"""Test the quick start around its training: accepted folders, locks, messages and summary.

The training is in tests/end_to_end/test_quickstart.py; here the shell script stops at the installation.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module as module
from pathlib import Path

import pytest
from filelock import FileLock
from limits import full, read_only

from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.verl_run import VerlRun

EXAMPLES = Path(__file__).parents[2] / "examples"
ACCURACY = "val-core/chain_sum/acc/mean@1"


pytestmark = pytest.mark.usefixtures("examples")


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# The run folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with an earlier run, somebody's folder, a file and an empty folder in it."""
    folder = tmp_path / "home" / "here"
    for name in ("run", "foreign", "own_settings", "empty"):
        (folder / name).mkdir(parents=True)
    (folder / "run" / "settings").write_text("algo=gvpo seed=1 steps=16")
    (folder / "foreign" / "thesis.tex").touch()
    (folder / "own_settings" / "settings").write_text("volume: 11")
    (folder / "file").touch()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        (".", "which holds the current directory"),
        ("..", "which holds the current directory"),
        ("/", "which holds the current directory"),
        ("foreign", "which has other files in it"),
        ("own_settings", "which has other files in it"),
        ("file", "is a file"),
        ("file/run", "is a file"),
    ],
)
def test_a_folder_that_is_not_a_run_is_refused_before_anything_is_made(
    here: Path, monkeypatch: pytest.MonkeyPatch, out: str, reason: str
) -> None:
    before = contents(here)
    # Without the refusal this test would train for minutes.
    monkeypatch.setattr(module("quickstart"), "prepare_and_train", lambda *_: pytest.fail("it began"))
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--out", out])
    with pytest.raises(SystemExit) as refused:
        module("quickstart").main()
    message = str(refused.value)
    assert message.startswith(f"quickstart.sh: --out is {(here / out).resolve()}, ")
    assert reason in message
    assert message.endswith("Type the same command with --out outputs/quickstart-2")
    assert contents(here) == before


def test_the_current_directory_is_refused_even_if_it_is_a_run(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here / "run")
    with pytest.raises(SystemExit, match="which holds the current directory"):
        module("quickstart_arguments").check_out(here / "run")


@pytest.mark.parametrize("out", ["new", "new/below", "empty", "run", "./foreign/../run"])
def test_a_new_folder_an_empty_one_and_an_earlier_run_are_taken(here: Path, out: str) -> None:
    assert module("quickstart_arguments").check_out(Path(out)) == (here / out).resolve()


def test_the_folder_that_is_suggested_is_another_one(here: Path) -> None:
    arguments = module("quickstart_arguments")
    (here / "outputs" / "quickstart-2").mkdir(parents=True)
    assert arguments.another(here / "outputs" / "quickstart") == "outputs/quickstart-3"
    assert arguments.another(here / "outputs" / "quickstart-3") == "outputs/quickstart-4"


def test_an_unfinished_run_is_taken_up_and_any_other_is_moved_aside(tmp_path: Path) -> None:
    open_run_folder = module("quickstart").open_run_folder
    out = tmp_path / "run"
    open_run_folder(out, "algo=gvpo seed=1 steps=16")
    (out / "attempt-1.log").touch()
    open_run_folder(out, "algo=gvpo seed=1 steps=16")
    assert contents(tmp_path) == ["run", "run/attempt-1.log", "run/settings"]

    open_run_folder(out, "algo=gvpo seed=2 steps=16")
    (aside,) = tmp_path.glob("run-*")
    assert contents(aside) == ["attempt-1.log", "settings"]
    assert (out / "settings").read_text() == "algo=gvpo seed=2 steps=16"
    shutil.rmtree(aside)

    (out / "summary.json").touch()
    open_run_folder(out, "algo=gvpo seed=2 steps=16")
    (aside,) = tmp_path.glob("run-*")
    assert contents(aside) == ["settings", "summary.json"]
    assert contents(out) == ["settings"]


# The shell script


def test_the_script_refuses_and_helps_before_it_installs(tmp_path: Path) -> None:
    """Its installation is a stand-in that leaves a file."""
    (tmp_path / "examples").mkdir()
    for file in EXAMPLES.glob("quickstart*"):
        shutil.copy(file, tmp_path / "examples")
    (tmp_path / "examples" / "setup_cpu.sh").write_text("touch installed; exit 1\n")

    def script(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "examples/quickstart.sh", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHON": sys.executable},
        )

    refused = script("--out", ".")
    assert refused.returncode == 1
    assert "--out is" in refused.stderr
    helped = script("--help")
    assert helped.returncode == 0
    assert helped.stdout.startswith("usage: quickstart.sh")
    assert not (tmp_path / "installed").exists()

    installing = script("trainer.test_freq=8")
    assert installing.stdout.startswith("[1/4] Installing ")
    assert (tmp_path / "installed").exists()


@pytest.fixture
def install(tmp_path: Path) -> Callable[[Path], "subprocess.Popen[str]"]:
    """Starts an installation with a stand-in for Python, which ends where it would use what it made."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)

    def start(venv: Path) -> "subprocess.Popen[str]":
        environment = {**os.environ, "PYTHON": str(python), "VENV": str(venv)}
        script = ["bash", str(EXAMPLES / "setup_cpu.sh")]
        return subprocess.Popen(script, stderr=subprocess.PIPE, text=True, env=environment)

    return start


def test_an_installation_waits_for_another_one_into_the_same_folder(tmp_path: Path, install) -> None:
    venv = tmp_path / "venv"
    with FileLock(f"{venv}.lock"):
        installing = install(venv)
        assert installing.stderr.readline() == (
            f"setup_cpu.sh: waiting, {venv} is being installed by another process\n"
        )
        assert installing.poll() is None
    _, error = installing.communicate(timeout=60)
    assert f"{venv}/bin/python: No such file" in error
    assert (venv / "installation-unfinished").exists()


def test_an_installation_clears_nothing_but_what_it_began(tmp_path: Path, install) -> None:
    (mine := tmp_path / "envs" / "mine").mkdir(parents=True)
    _, refused = install(mine.parent).communicate()
    assert f"{mine.parent} is no environment, and not empty; valid is a new folder" in refused
    assert mine.is_dir()

    (begun := tmp_path / "begun").mkdir()
    for name in ("installation-unfinished", "half"):
        (begun / name).touch()
    install(begun).communicate()
    assert [file.name for file in begun.iterdir()] == ["installation-unfinished"]

    own = tmp_path / "own" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\nexit 1\n")
    own.chmod(0o755)
    install(own.parents[1]).communicate()
    assert not (own.parents[1] / "installation-unfinished").exists(), "it would be cleared the next time"


# Two at once, and disks


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[object, str]]:
    """Runs it below ``tmp_path/closed``, with a stand-in for verl; returns status and standard error."""
    (tmp_path / "closed").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "helpers" / "fake_verl"))
    monkeypatch.setattr(module("quickstart"), "prepare", lambda *_: None)

    def start(out: str = "run") -> tuple[object, str]:
        words = ["quickstart.py", "--out", str(tmp_path / "closed" / out), "--steps", "5", "data.seed=1"]
        monkeypatch.setattr(sys, "argv", words)
        status: object = 0
        try:
            module("quickstart").main()
        except SystemExit as ended:
            status = ended.code
        return status, capsys.readouterr().err

    return start


def test_a_second_quick_start_in_a_folder_is_refused_until_the_first_has_ended(tmp_path: Path, start) -> None:
    """Also through a link, and while the folder of an earlier run is renamed."""
    quickstart, run = module("quickstart"), tmp_path / "closed" / "run"
    (tmp_path / "closed" / "link").symlink_to(run)
    with quickstart.alone_in(run):
        for settings in ("algo=gvpo seed=1 steps=16", "algo=gvpo seed=2 steps=16"):
            quickstart.open_run_folder(run, settings)
            before = contents(tmp_path)
            for out in ("run", "link"):
                refused, _ = start(out)
                where = f"--out is {run}, where another quick start is running (process {os.getpid()});"
                assert where in str(refused)
            assert contents(tmp_path) == before
        assert start("other") == (0, "")
    assert start("run") == (0, "")


def test_a_closed_folder_a_full_disk_and_then_a_resume(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence each."""
    run = tmp_path / "closed" / "run"
    with read_only(tmp_path / "closed"):
        assert start() == (
            1,
            f"quickstart.sh: {run}.lock: Permission denied; valid is a place that this user "
            f"may read and write. Type: --out <another folder>\n",
        )
    quickstart = module("quickstart")
    draw, summary = quickstart.draw_learning_curve, run / "summary.json"
    with monkeypatch.context() as disk:
        disk.setattr(quickstart, "draw_learning_curve", lambda *of: (draw(*of), full(summary)))
        assert start() == (
            1,
            f"quickstart.sh: {summary}: No space left on device. Free space there, and run the same command "
            f"again; what was finished is kept\n",
        )
    assert (run / "learning_curve.png").exists()
    assert start() == (0, "")
    assert summary.exists()
    assert not (run / "attempt-2.jsonl").exists(), "the training was finished"


# What it says of its stages


def test_stages_say_what_and_how_long_and_then_how_long_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([165.0, 165.0, 240.0, 240.0, 270.0])
    stages = module("quickstart_arguments").Stages(started=100.0, clock=lambda: next(now))
    stages.begin("prepare", "Preparing", 60, ", less if it is there")
    stages.begin("prepare", "Preparing", 60, ", less if it is there")
    stages.begin("train", "Training", 120)
    stages.end()
    assert capsys.readouterr().out.splitlines() == [
        "      took 1:05; 1:05 since the start",
        "[2/4] Preparing: about 1 minute on 2 cores, less if it is there.",
        "      took 1:15; 2:20 since the start",
        "[4/4] Training: about 2 minutes on 2 cores.",
        "      took 0:30; 2:50 since the start",
    ]


def test_without_the_script_there_is_no_installation_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    stages = module("quickstart_arguments").Stages()
    stages.begin("prepare", "Preparing", 60)
    assert capsys.readouterr().out == "[2/4] Preparing: about 1 minute on 2 cores.\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "about 5 s"), (31, "about 30 s"), (58, "about 1 minute"), (119, "about 2 minutes")],
)
def test_expected_times_are_rough(seconds: float, words: str) -> None:
    assert module("quickstart_arguments").about(seconds) == words


def test_training_is_announced_with_the_first_metrics_of_its_own_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the attempt before are there while verl starts."""
    metrics = json.dumps({"step": 4, "data": {ACCURACY: 0.5}}) + "\n"
    (tmp_path / "attempt-1.log").touch()
    (tmp_path / "attempt-1.jsonl").write_text(metrics)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4")

    def go(run: VerlRun, on_metrics: Callable[[Metrics], None]) -> None:
        on_metrics(run.metrics())
        (run.folder / "attempt-2.jsonl").touch()
        on_metrics(run.metrics())
        print("verl has started")
        (run.folder / "attempt-2.jsonl").write_text(metrics)
        on_metrics(run.metrics())
        on_metrics(run.metrics())

    monkeypatch.setattr(VerlRun, "go", go)
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--steps", "16"])
    options, overrides = module("quickstart_arguments").parse_arguments()
    module("quickstart").train(options, overrides, tmp_path, module("quickstart_arguments").Stages())
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("[", "verl", "      "))]
    assert [line.split(":")[0] for line in said] == [
        "[3/4] Starting verl (Ray, actor and rollout) and testing the model",
        "verl has started",
        "      took 0",
        "[4/4] Training with gvpo, 12 steps to go",
        "      took 0",
    ]


# The summary


def training(*tested: int, last: int) -> Metrics:
    """Metrics of ``last`` steps; the test accuracy is a hundredth of the step, and 0.5 at step 0."""
    metrics: Metrics = {step: {"critic/score/mean": 0.25} for step in range(1, last + 1)}
    for step in tested:
        metrics.setdefault(step, {})[ACCURACY] = step / 100 or 0.5
    return metrics


NO_BEFORE = "There is no accuracy before training: step 0 was not tested (trainer.val_before_train)."


@pytest.mark.parametrize(
    ("metrics", "before", "after", "said"),
    [
        (
            training(0, 4, 8, last=8), 0.5, 0.08,
            ["0.500 before, 0.080 after 8 steps of gvpo (seed 1, 90 s in all)."],
        ),
        (
            training(4, 8, last=8), None, 0.08,
            ["0.080 after 8 steps of gvpo (seed 1, 90 s in all).", NO_BEFORE],
        ),
        (
            training(0, 4, last=6), 0.5, None,
            [
                "0.500 before (seed 1, 90 s in all).",
                "There is no accuracy after 6 steps of gvpo: the last test was after step 4, 0.040 "
                "(trainer.test_freq).",
            ],
        ),
        (
            training(last=6), None, None,
            [
                "none (seed 1, 90 s in all).",
                NO_BEFORE,
                "There is no accuracy after 6 steps of gvpo: no step of the training was tested "
                "(trainer.test_freq).",
            ],
        ),
    ],
    ids=["both", "no before", "not at the end", "no test"],
)  # fmt: skip
def test_the_summary_has_the_accuracies_that_there_are(
    tmp_path: Path, metrics: Metrics, before: float | None, after: float | None, said: list[str]
) -> None:
    of = module("quickstart")
    summary = of.summarize(metrics, algo="gvpo", seed=1, seconds=90.0)
    first, *rest = of.sentence(summary).splitlines()
    assert [first.removeprefix("Test accuracy, sampled at temperature 1: "), *rest] == said

    of.write_summary(summary, tmp_path / "summary.json")
    written = json.loads((tmp_path / "summary.json").read_text())
    assert (written["accuracy_before"], written["accuracy_after"]) == (before, after)
    of.draw_learning_curve(metrics, tmp_path / "curve.png", "gvpo")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
