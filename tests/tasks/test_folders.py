"""Test folders with a manifest: made once, found again, refused when changed, made again when forced."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grpo_verl_ext.tasks.folders import PreparedFolder, PreparedFolderError, PreparedOutcome
from grpo_verl_ext.utils.files import sha256


def build(folder: Path) -> dict[str, dict[str, int]]:
    (folder / "inside").mkdir()
    (folder / "inside" / "data").write_text("7")
    return {"found": {"count": 7}}


def make(folder: Path, seed: int = 1, *, force: bool = False) -> PreparedOutcome:
    return PreparedFolder(folder).make({"seed": seed}, build, force=force)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "task").folder


def test_it_has_its_files_and_a_manifest(folder: Path) -> None:
    manifest = {"settings": {"seed": 1}, "found": {"count": 7}}
    manifest["sha256"] = {"inside/data": sha256(folder / "inside" / "data")}
    assert json.loads((folder / "manifest.json").read_text()) == manifest == PreparedFolder(folder).check()
    assert {path.name for path in folder.parent.iterdir()} == {"task", "task.lock"}


def test_a_second_time_nothing_is_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor locked: the folder may be another user's, whose lock could not be opened."""
    monkeypatch.setattr("grpo_verl_ext.tasks.folders.locked", lambda *_, **__: pytest.fail("it is locked"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    found = make(folder)
    assert (found.made, found.moved_aside, found.manifest["found"]) == (False, None, {"count": 7})
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_other_settings_are_refused(folder: Path) -> None:
    said = r"other settings \({'seed': 1}\) than these \({'seed': 2}\)"
    with pytest.raises(PreparedFolderError, match=said):
        make(folder, seed=2)


def test_force_makes_it_again_and_keeps_what_was_there(folder: Path) -> None:
    (folder / "inside" / "data").write_text("mine")
    again = make(folder, seed=2, force=True)
    assert again.made
    assert (again.moved_aside / "inside" / "data").read_text() == "mine"
    assert PreparedFolder(folder).check()["settings"] == {"seed": 2}


def test_the_old_one_stays_in_its_place_until_the_new_one_is_complete(folder: Path) -> None:
    def build_beside(unfinished: Path) -> dict[str, dict[str, int]]:
        assert PreparedFolder(folder).check()["found"] == {"count": 7}
        return build(unfinished) | {"found": {"count": 8}}

    made = PreparedFolder(folder).make({"seed": 1}, build_beside, force=True)
    assert made.moved_aside is not None
    assert [PreparedFolder(each).check()["found"]["count"] for each in (folder, made.moved_aside)] == [8, 7]


def fails(folder: Path) -> dict[str, int]:
    build(folder)
    raise RuntimeError


def test_what_fails_leaves_nothing_and_with_force_what_was_there(tmp_path: Path) -> None:
    place = PreparedFolder(tmp_path / "task")
    with pytest.raises(RuntimeError):
        place.make({}, fails, force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["task.lock"]
    make(place.path)
    with pytest.raises(RuntimeError):
        place.make({}, fails, force=True)
    assert place.check()["found"] == {"count": 7}
    assert {path.name for path in tmp_path.iterdir()} == {"task", "task.lock"}


def test_a_changed_and_a_missing_file_are_named_and_left_in_place(folder: Path) -> None:
    file = folder / "inside" / "data"
    file.write_text("8")
    for use in (make, lambda folder: PreparedFolder(folder).check()):
        with pytest.raises(PreparedFolderError) as error:
            use(folder)
        assert f"{file} cannot be used: its sha256 is {sha256(file)}, " in str(error.value)
        assert str(error.value).endswith("add --force")
        assert file.read_text() == "8"
    file.unlink()
    with pytest.raises(PreparedFolderError, match=r"inside/data cannot be used: it is missing"):
        make(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", "\0", '{"settings": {}, "sha256": 3}'])
def test_a_corrupt_manifest_is_named(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(PreparedFolderError, match=r"manifest\.json cannot be used: it is not a manifest"):
        PreparedFolder(folder).check()


def test_a_folder_of_another_layout_is_named_with_the_line_that_makes_it(folder: Path) -> None:
    line = "It is left in place; to move the folder aside and make it again, type: prepare x --force"
    why = "its format is None, this version reads 2"
    with pytest.raises(PreparedFolderError, match=rf"^key={folder}: .*manifest.json .*{why}.*{line}"):
        PreparedFolder(folder, "prepare x", "key", format=2).check()


def test_two_at_once_take_turns_and_one_does_the_work(tmp_path, monkeypatch) -> None:
    waits, outcomes = threading.Event(), []
    monkeypatch.setattr("grpo_verl_ext.tasks.folders.say", lambda _: waits.set())

    def build_slowly(folder: Path) -> dict[str, dict[str, int]]:
        second.start()
        assert waits.wait(60)
        return build(folder)

    second = threading.Thread(target=lambda: outcomes.append(make(tmp_path / "task")))
    first = PreparedFolder(tmp_path / "task").make({"seed": 1}, build_slowly, force=False)
    second.join(60)
    assert (first.made, outcomes[0].made) == (True, False)


KILLED = """
import sys, time
from pathlib import Path
from grpo_verl_ext.tasks.folders import PreparedFolder

def build(folder):
    (folder / "half").write_text("half")
    print("begun", flush=True)
    time.sleep(600)

PreparedFolder(Path(sys.argv[1])).make({"seed": 1}, build, force=False)
"""


def test_killed_on_the_way_the_same_command_recovers(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, folder := tmp_path / "task"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout.readline() == "begun\n"
        killed.send_signal(signal.SIGKILL)
    assert any(path.name.endswith(".partial") for path in tmp_path.iterdir())
    with pytest.raises(PreparedFolderError, match="no such folder"):
        PreparedFolder(folder).check()
    assert make(folder).made
    assert {path.name for path in tmp_path.iterdir()} == {"task", "task.lock"}
