"""Test the record of the software that a result was made with."""

import re
import subprocess
from pathlib import Path

import pytest

from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.runs.provenance import git_revision, machine, versions


def test_what_decides_the_numbers_is_recorded() -> None:
    assert {"python", "grpo-verl-ext", "verl", "torch", "transformers", "trl"} <= versions().keys()
    revision = git_revision()
    assert revision is None or len(revision.removesuffix("+changes")) == 40


def test_the_machine_by_what_changes_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert re.fullmatch(r".+, (no )?AVX-512, \d+ cores, OMP_NUM_THREADS=unset", machine())
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert machine().endswith("OMP_NUM_THREADS=2")


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class TestRevision:
    @pytest.fixture
    def sources(self, tmp_path: Path) -> Path:
        """A package in a checkout with one commit."""
        package = tmp_path / "checkout" / "package"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package.parent / ".gitignore").write_text("__pycache__/\n")
        git(package.parent, "init")
        git(package.parent, "add", ".")
        git(package.parent, "commit", "-m", "first")
        return package

    def test_a_clean_checkout_is_its_commit(self, sources: Path) -> None:
        (sources / "__pycache__").mkdir()
        (sources / "__pycache__" / "ignored.pyc").touch()
        (sources.parent / "notes.txt").touch()
        assert git_revision(sources) == git(sources, "rev-parse", "HEAD")

    @pytest.mark.parametrize("change", ["package/__init__.py", "package/new.py", ".gitignore"])
    @pytest.mark.parametrize("staged", [False, True])
    def test_a_change_is_marked(self, sources: Path, change: str, staged: bool) -> None:
        """Of tracked files anywhere; a new file in the package can be imported, so it counts, too."""
        (sources.parent / change).write_text("changed")
        if staged:
            git(sources, "add", ":/")
        assert git_revision(sources) == git(sources, "rev-parse", "HEAD") + "+changes"

    def test_without_a_checkout_or_git_there_is_none(self, sources, tmp_path, monkeypatch) -> None:
        installed = sources.parent / "site-packages" / "package"
        installed.mkdir(parents=True)
        (installed / "__init__.py").touch()
        assert git_revision(installed) is None, "inside a checkout of something else"
        monkeypatch.setenv("PATH", str(tmp_path))
        assert git_revision(sources) is None

    def test_a_checkout_that_git_refuses_to_read_is_named(self, sources, monkeypatch) -> None:
        """One of another user, as where a container's root reads a mounted checkout."""
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        with pytest.raises(ProcessFailedError, match=r"git config --global --add safe\.directory"):
            git_revision(sources)
