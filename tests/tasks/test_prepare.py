"""Test ``prepare``: once, whole or not at all, deterministic by seed, with messages on what it finds."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grpo_verl_ext.tasks.chain_sum.model import accuracy
from grpo_verl_ext.tasks.chain_sum.prepare import prepare_chain_sum
from grpo_verl_ext.tasks.chain_sum.prepared import (
    SAMPLES_PER_PROMPT,
    TASKS,
    TaskSettings,
    chain_sum_folder,
    read_checked,
)
from grpo_verl_ext.tasks.folders import PreparedFolderError
from grpo_verl_ext.utils.files import sha256

# Runs in another process: says each step, so that the test knows when to kill it.
PREPARE = """
import sys
from pathlib import Path
from grpo_verl_ext.tasks.chain_sum.prepare import prepare_chain_sum
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings

root, steps = Path(sys.argv[1]), int(sys.argv[2])
settings = TaskSettings(max_terms=3, train_problems=30, test_problems=9, width=32, layers=1, heads=1,
                    feed_forward=32, steps=steps, slip_steps=1, batch_size=4, workers=2)
outcome = prepare_chain_sum(1, settings=settings, root=root,
                            on_step=lambda *done: print("step", *done, flush=True))
print("made" if outcome.made else "found")
"""


def start(root: Path, *, steps: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(root), str(steps)], stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def folder(tmp_path, tiny_prepared):
    """A prepared folder of seed 7 to do harm to."""
    return shutil.copytree(tiny_prepared.folder, chain_sum_folder(7, tmp_path))


def test_the_folder_and_its_manifest(tiny_prepared, tiny):
    folder, manifest = tiny_prepared.folder, tiny_prepared.manifest
    assert {path.name for path in folder.iterdir()} == {
        "train.parquet",
        "test.parquet",
        "model",
        "manifest.json",
    }
    assert json.loads((folder / "manifest.json").read_text())["sha256"] == manifest.sha256
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files - {"manifest.json"} == manifest.sha256.keys()
    assert manifest.sha256["train.parquet"] == sha256(folder / "train.parquet")
    assert (manifest.seed, manifest.measured_prompts) == (7, 9)
    assert TaskSettings(**manifest.settings) == tiny
    assert manifest.versions["torch"] == torch.__version__
    assert [path.name for path in folder.parent.iterdir() if path != folder] == ["seed-7.lock"]


def test_the_manifests_accuracy_is_what_accuracy_measures(tiny_prepared):
    folder = tiny_prepared.folder
    model, test = folder / "model", folder / "test.parquet"
    assert tiny_prepared.manifest.sampled_accuracy == accuracy(model, test, n=9, samples=SAMPLES_PER_PROMPT)
    assert tiny_prepared.manifest.greedy_accuracy == accuracy(model, test, n=9, temperature=0.0)


@pytest.mark.parametrize(
    ("sampled", "greedy", "standard"),
    [(0.25, 0.95, True), (0.28, 1.0, True), (0.29, 1.0, False), (0.21, 1.0, False), (0.25, 0.94, False)],
)
def test_a_standard_start_knows_the_answers_and_samples_a_quarter(tiny_prepared, sampled, greedy, standard):
    manifest = replace(tiny_prepared.manifest, sampled_accuracy=sampled, greedy_accuracy=greedy)
    assert manifest.is_standard is standard


def test_the_same_seed_gives_the_same_files_and_another_seed_others(tiny_prepared, tiny, tmp_path):
    again = prepare_chain_sum(7, settings=tiny, root=tmp_path).manifest.sha256
    other = prepare_chain_sum(8, settings=tiny, root=tmp_path).manifest.sha256
    assert again == tiny_prepared.manifest.sha256
    assert other.keys() == again.keys()
    different = {name for name in again if again[name] != other[name]}
    assert different == {"train.parquet", "test.parquet", "model/model.safetensors"}


def test_a_second_time_nothing_is_done(folder, tiny):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    outcome = prepare_chain_sum(7, settings=tiny, root=folder.parents[1])
    assert (outcome.made, outcome.folder, outcome.moved_aside) == (False, folder, None)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_force_makes_it_again_and_keeps_what_was_there(folder, tiny):
    (folder / "train.parquet").write_text("mine")
    outcome = prepare_chain_sum(7, settings=tiny, root=folder.parents[1], force=True)
    read_checked(folder)
    assert outcome.made
    assert (outcome.moved_aside / "train.parquet").read_text() == "mine"


def test_force_that_fails_leaves_what_was_there(folder, tiny, monkeypatch):
    (folder / "train.parquet").write_text("mine")
    monkeypatch.setattr("grpo_verl_ext.tasks.chain_sum.prepare.build_model", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare_chain_sum(7, settings=tiny, root=folder.parents[1], force=True)
    assert (folder / "train.parquet").read_text() == "mine"
    assert [each.name for each in folder.parent.iterdir() if each.is_dir()] == [folder.name]


@pytest.mark.parametrize("name", ["train.parquet", "model/model.safetensors", "model/config.json"])
def test_a_changed_file_is_named_and_left_in_place(folder, tiny, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    for use in (
        lambda: read_checked(folder),
        lambda: prepare_chain_sum(7, settings=tiny, root=folder.parents[1]),
    ):
        with pytest.raises(PreparedFolderError) as error:
            use()
        assert f"{folder / name} cannot be used: its sha256 is {sha256(folder / name)}" in str(error.value)
        where = f"GRPO_VERL_EXT_CACHE={folder.parents[1]}"
        line = f"type: {where} grpo-verl-ext prepare chain_sum --seed 7 --force"
        assert line in str(error.value)
        assert (folder / name).read_bytes() == content


def test_a_missing_file_is_named(folder):
    (folder / "test.parquet").unlink()
    with pytest.raises(
        PreparedFolderError, match=r"test.parquet cannot be used: it is missing.*--seed 7 --force"
    ):
        read_checked(folder)


@pytest.mark.parametrize("content", ["", "{", "null", "[]", "{}", '{"seed": 1}', "\0"])
def test_a_corrupt_manifest_is_named(folder, content):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(PreparedFolderError, match=r"manifest.json cannot be used: it is not a manifest"):
        read_checked(folder)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("sha256", {}, "it has no sha256 for each of"),
        ("sha256", 3, r"it is not a manifest \(sha256 is a int"),
        ("format", 0, "its format is 0"),
    ],
)
def test_a_manifest_of_another_kind_is_named(folder, key, value, why):
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(content | {key: value}))
    with pytest.raises(PreparedFolderError, match=f"manifest.json cannot be used: {why}"):
        read_checked(folder)


def test_a_folder_that_is_not_there_comes_with_the_line_that_makes_it(tmp_path, monkeypatch):
    """In its place, which may be another than the cache."""
    line = "grpo-verl-ext prepare chain_sum --seed 3"
    for cache, said in ((tmp_path, line), (tmp_path / "other", f"GRPO_VERL_EXT_CACHE={tmp_path} {line}")):
        monkeypatch.setenv("GRPO_VERL_EXT_CACHE", str(cache))
        with pytest.raises(PreparedFolderError) as error:
            read_checked(chain_sum_folder(3, tmp_path))
        assert str(error.value).endswith(f"no such folder; type: {said}")


def test_a_whole_folder_of_another_user_is_only_read(folder, tiny, monkeypatch):
    """Its lock could not be opened."""
    monkeypatch.setattr("grpo_verl_ext.tasks.folders.locked", lambda *_, **__: pytest.fail("it is locked"))
    assert not prepare_chain_sum(7, settings=tiny, root=folder.parents[1]).made


def test_other_settings_are_refused(folder, tiny):
    message = r"other settings.*'steps': 3.*'steps': 4.*--seed 7 --force"
    with pytest.raises(PreparedFolderError, match=message):
        prepare_chain_sum(7, settings=replace(tiny, steps=4), root=folder.parents[1])


def test_an_error_on_the_way_leaves_nothing(tmp_path, tiny):
    with pytest.raises(ValueError, match="test_problems=900"):
        prepare_chain_sum(1, settings=replace(tiny, max_terms=3, test_problems=900), root=tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["chain_sum", "seed-1.lock"]


@pytest.mark.long
def test_killed_on_the_way_the_same_command_recovers(tmp_path):
    killed = start(tmp_path, steps=10**6)
    assert killed.stdout.readline() == "step 1 1000000\n"
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    left = {path.name for path in (tmp_path / "chain_sum").iterdir()}
    assert len(left) == 2
    assert any(name.endswith(".partial") for name in left)
    with pytest.raises(PreparedFolderError, match="no such folder"):
        read_checked(chain_sum_folder(1, tmp_path))

    again = start(tmp_path, steps=2)
    assert again.communicate(timeout=120)[0].splitlines()[-1] == "made"
    read_checked(chain_sum_folder(1, tmp_path))
    assert {path.name for path in (tmp_path / "chain_sum").iterdir()} == {"seed-1", "seed-1.lock"}


def test_two_at_once_take_turns_and_one_does_the_work(tmp_path):
    both = [start(tmp_path, steps=3) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0].splitlines()[-1] for process in both)
    assert said == ["found", "made"]
    read_checked(chain_sum_folder(1, tmp_path))


@pytest.mark.long
def test_the_real_warm_start_is_middling_when_sampled_and_knows_better(tmp_path):
    """Of the harder task; the end-to-end tests train from the start of the other."""
    outcome = prepare_chain_sum(1, settings=TASKS["chain_sum_mixed"], root=tmp_path)
    assert outcome.manifest.measured_prompts >= 512
    assert 0.15 <= outcome.manifest.sampled_accuracy <= 0.5
    model, test = outcome.folder / "model", outcome.folder / "test.parquet"
    assert accuracy(model, test, temperature=0.0) >= 0.75
    assert all(torch.isfinite(weight).all() for weight in load_file(model / "model.safetensors").values())
