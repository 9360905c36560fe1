"""Test the quick start around its training: accepted folders, locks and summary.

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
from processes import run_program

from grpo_verl_ext.runs.verl_run import Metrics

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


@pytest.mark.parametrize("out", [".", "..", "foreign", "own_settings", "file", "file/run"])
def test_a_folder_that_is_not_a_run_is_refused_before_anything_is_made(here, monkeypatch, out) -> None:
    before = contents(here)
    # Without the refusal this test would train for minutes.
    monkeypatch.setattr(module("quickstart"), "prepare_and_train", lambda *_: pytest.fail("it began"))
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--out", out])
    with pytest.raises(SystemExit, match=f"--out is {(here / out).resolve()}, "):
        module("quickstart").main()
    assert contents(here) == before


def test_a_misspelt_preset_is_refused_before_anything_is_installed() -> None:
    check = module("quickstart_arguments").check_algo
    with pytest.raises(SystemExit, match=r"--algo is grp<U\+200B>o; valid are bnpo, .*Type: --algo grpo"):
        check("grp\u200bo")
    check("gvpo_distill")  # perhaps another package's


def test_the_current_directory_is_refused_even_if_it_is_a_run(here, monkeypatch) -> None:
    monkeypatch.chdir(here / "run")
    with pytest.raises(SystemExit, match="which holds the current directory"):
        module("quickstart_arguments").check_out(here / "run")


@pytest.mark.parametrize("out", ["new", "new/below", "empty", "run", "./foreign/../run"])
def test_a_new_folder_an_empty_one_and_an_earlier_run_are_taken(here: Path, out: str) -> None:
    assert module("quickstart_arguments").check_out(Path(out)) == (here / out).resolve()


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
        environment = {**os.environ, "PYTHON": sys.executable}
        return run_program(["bash", "examples/quickstart.sh", *arguments], cwd=tmp_path, env=environment)

    refused = script("--out", ".")
    assert refused.returncode == 1
    assert "--out is" in refused.stderr
    helped = script("--help")
    assert (helped.returncode, helped.stdout[:6]) == (0, "usage:")
    assert not (tmp_path / "installed").exists()

    script("trainer.test_freq=8")
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
        assert "is being installed by another process" in installing.stderr.readline()
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


def test_a_closed_folder_a_full_disk_and_then_a_resume(start, tmp_path, monkeypatch) -> None:
    run = tmp_path / "closed" / "run"
    with read_only(tmp_path / "closed"):
        status, said = start()
    assert (status, f"{run}.lock: Permission denied; " in said) == (1, True)
    quickstart = module("quickstart")
    draw, summary = quickstart.draw_learning_curve, run / "summary.json"
    with monkeypatch.context() as disk:
        disk.setattr(quickstart, "draw_learning_curve", lambda *of: (draw(*of), full(summary)))
        status, said = start()
    assert (status, f"{summary}: No space left on device. " in said) == (1, True)
    assert (run / "learning_curve.png").exists()
    assert start() == (0, "")
    assert summary.exists()
    assert not (run / "attempt-2.jsonl").exists(), "the training was finished"


# The summary


def training(*tested: int, last: int) -> Metrics:
    """Metrics of ``last`` steps; the test accuracy is a hundredth of the step, and 0.5 at step 0."""
    metrics: Metrics = {step: {"critic/score/mean": 0.25} for step in range(1, last + 1)}
    for step in tested:
        metrics.setdefault(step, {})[ACCURACY] = step / 100 or 0.5
    return metrics


@pytest.mark.parametrize(
    ("metrics", "before", "after"),
    [
        (training(0, 4, 8, last=8), 0.5, 0.08),
        (training(4, 8, last=8), None, 0.08),
        (training(0, 4, last=6), 0.5, None),
        (training(last=6), None, None),
    ],
    ids=["both", "no before", "not at the end", "no test"],
)
def test_the_summary_has_the_accuracies_that_there_are(tmp_path, metrics, before, after) -> None:
    of = module("quickstart")
    summary = of.summarize(metrics, algo="gvpo", seed=1, seconds=90.0)
    said = of.sentence(summary)
    assert ("0.500 before" in said, "0.080 after" in said) == (before is not None, after is not None)

    of.write_summary(summary, tmp_path / "summary.json")
    written = json.loads((tmp_path / "summary.json").read_text())
    assert (written["accuracy_before"], written["accuracy_after"]) == (before, after)
    of.draw_learning_curve(metrics, tmp_path / "curve.png", "gvpo")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
