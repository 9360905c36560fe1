"""Test folders with a manifest: made once, found again, refused when changed, made again when forced."""

from pathlib import Path

import pytest

from grpo_verl_ext.tasks.folders import (
    FolderManifest,
    FoundManifest,
    PreparedFolder,
    PreparedFolderError,
    PreparedOutcome,
)


def make(folder: Path, settings: dict[str, int], build, *, force: bool) -> PreparedOutcome[FoundManifest]:
    return PreparedFolder(folder, FoundManifest).make(settings, build, force=force)


def checked(folder: Path) -> FolderManifest:
    return PreparedFolder(folder, FoundManifest).check()


def build(folder: Path) -> dict[str, dict[str, int]]:
    (folder / "inside").mkdir()
    (folder / "inside" / "data").write_text("7")
    return {"found": {"count": 7}}


def test_made_then_found_then_refused_then_made_again(tmp_path: Path) -> None:
    folder, settings = tmp_path / "task", {"seed": 1}
    made = make(folder, settings, build, force=False)
    assert (made.made, made.manifest.found, made.moved_aside) == (True, {"count": 7}, None)
    found = make(folder, settings, build, force=False)
    assert (found.made, found.manifest.found) == (False, {"count": 7})
    with pytest.raises(
        PreparedFolderError, match=r"other settings \({'seed': 1}\) than these \({'seed': 2}\)"
    ):
        make(folder, {"seed": 2}, build, force=False)
    (folder / "inside" / "data").write_text("8")
    with pytest.raises(PreparedFolderError, match=r"inside/data cannot be used: its sha256 is .*add --force"):
        make(folder, settings, build, force=False)
    again = make(folder, {"seed": 2}, build, force=True)
    assert again.moved_aside is not None
    assert (again.moved_aside / "inside" / "data").read_text() == "8"
    assert checked(folder).settings == {"seed": 2}


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails(folder: Path) -> dict[str, int]:
        build(folder)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        make(tmp_path / "task", {}, fails, force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["task.lock"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"settings": {}, "found": {}, "sha256": 3}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    make(tmp_path / "task", {}, build, force=False)
    (tmp_path / "task" / "manifest.json").write_text(content)
    with pytest.raises(PreparedFolderError, match=r"manifest\.json cannot be used: it is not a manifest"):
        checked(tmp_path / "task")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PreparedFolderError, match="task: no such folder"):
        checked(tmp_path / "task")
