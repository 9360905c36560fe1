"""Test that folders appear whole or not at all, and that one process makes them."""

import os
import threading

import pytest
import torch
from limits import largest_file, read_only
from safetensors.torch import save_file

from grpo_verl_ext.utils.files import appearing, in_one_sentence, locked, sha256, write_whole


def test_a_folder_appears_whole_when_the_block_ends(tmp_path):
    with appearing(tmp_path / "a") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a" / "file").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_files_written_for_the_owner_alone_follow_the_umask(tmp_path, umask, mode):
    """safetensors creates its files with 0o600; one that may be run stays so."""
    before = os.umask(umask)
    try:
        with appearing(tmp_path / "a") as folder:
            (folder / "inside").mkdir()
            for name, own in (("weights", 0o600), ("inside/script", 0o700)):
                (folder / name).touch()
                (folder / name).chmod(own)
    finally:
        os.umask(before)
    found = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert found == {"weights": mode, "script": mode | 0o100}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing(tmp_path, error):
    def fill() -> None:
        with appearing(tmp_path / "a") as folder:
            (folder / "file").write_text("x")
            raise error

    with pytest.raises(error):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(FileExistsError), appearing(tmp_path / "a"):
        pytest.fail("entered")


def test_leavings_of_the_same_folder_only_are_removed(tmp_path):
    for name in (".a.partial/left", ".ab.partial", ".a.notes"):
        (tmp_path / name).mkdir(parents=True)
    with appearing(tmp_path / "a") as new:
        assert list(new.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"a", ".ab.partial", ".a.notes"}


def test_one_at_a_time_and_the_other_says_that_it_waits(tmp_path):
    order, waiting = [], threading.Event()

    def second() -> None:
        with locked(tmp_path / "a", on_wait=waiting.set):
            order.append("second")

    with locked(tmp_path / "a", on_wait=lambda: pytest.fail("nobody to wait for")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(timeout=30)
        order.append("first")
    thread.join(timeout=30)
    assert order == ["first", "second"]


def test_a_file_is_replaced_and_not_written_over(tmp_path):
    """Who has the old file, by another name or because it is open, keeps the old content."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").hardlink_to(tmp_path / "file")
    write_whole(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "link").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_a_file_that_cannot_be_written_to_its_end_keeps_the_old_content(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError("no space left")

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"


def test_sha256_of_a_known_file(tmp_path):
    # the digest of "abc" in FIPS 180-4's examples
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("size", [3, 5000])
def test_a_full_disk_is_named_and_gets_its_space_back(tmp_path, size):
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match=r"File too large: '.*/file'") as found, largest_file(size):
        write_whole(tmp_path / "file", "new" * 5000)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"
    assert in_one_sentence(found.value) == (
        f"{tmp_path}/file: File too large. Free space there, and run the same command again; what was "
        f"finished is kept"
    )


def test_a_full_disk_is_named_where_safetensors_fills_it(tmp_path):
    """Its own error has neither number nor name."""
    weights = {"weight": torch.zeros(50_000)}
    with pytest.raises(OSError, match=r"File too large: '.*/model'"), largest_file(5000):  # noqa: SIM117
        with appearing(tmp_path / "model") as folder:
            save_file(weights, folder / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_has_a_line_to_type(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("GRPO_VERL_EXT_CACHE", str(cache))
    with read_only(tmp_path):
        with pytest.raises(PermissionError) as outside:
            write_whole(tmp_path / "file", "new")
        with pytest.raises(PermissionError) as inside:
            (cache / "chain_sum").mkdir()
    said = "Permission denied; valid is a place that this user may read and write"
    assert in_one_sentence(outside.value) == f"{tmp_path}/file: {said}"
    assert in_one_sentence(outside.value, "--output x") == f"{tmp_path}/file: {said}. Type: --output x"
    assert in_one_sentence(inside.value, "--output x") == (
        f"{cache}/chain_sum: {said}. Type: export GRPO_VERL_EXT_CACHE=<another folder>"
    )
    assert in_one_sentence(ConnectionResetError("a server")) is None
