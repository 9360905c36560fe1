"""Test the manifest: complete, continued, refused."""

import json
from pathlib import Path

import pytest

from grpo_verl_ext.iterate.rounds import IterateManifest, RoundRecord, read_manifest
from grpo_verl_ext.iterate.settings import IterateError

SETTINGS = {"folder": "f", "rounds": 2, "policy": {"steps": 3}}


def record(number: int) -> RoundRecord:
    return RoundRecord(number, 1000 + number, ["+algo=grpo"], None, {"python": "3"})


def test_written_and_read_back(tmp_path: Path) -> None:
    manifest = read_manifest(tmp_path, SETTINGS)
    assert manifest.rounds == []
    manifest.rounds.append(record(1))
    manifest.rounds[0].parts["policy"] = {"steps": 3}
    manifest.write(tmp_path)
    again = read_manifest(tmp_path, SETTINGS)
    assert again == manifest
    assert again.finished(1, "policy")
    assert not again.finished(1, "model")
    assert not again.finished(2, "policy")
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_more_rounds_go_on(tmp_path: Path) -> None:
    IterateManifest(SETTINGS, [record(1)]).write(tmp_path)
    assert len(read_manifest(tmp_path, {**SETTINGS, "rounds": 9}).rounds) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**SETTINGS, "policy": {"steps": 4}}, r"another policy\.steps: 3 there, 4 now"),
        ({**SETTINGS, "seed": 4}, r"another seed: None there, 4 now"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    IterateManifest(SETTINGS, [record(1)]).write(tmp_path)
    with pytest.raises(IterateError, match=message):
        read_manifest(tmp_path, settings)


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ({"measure": {"batch_size": 4}}, "measure"),
        ({"reward_model": {"trainer": {"per_device_train_batch_size": 4}}}, "reward_model"),
        ({"reward_model": {"launcher": ["accelerate"]}}, "reward_model"),
    ],
)
def test_settings_of_a_part_may_change_until_it_is_finished(
    tmp_path: Path, setting: dict[str, object], part: str
) -> None:
    """Such as those with which it was out of memory, after the policy was trained."""
    begun = record(1)
    begun.parts["policy"] = {}
    IterateManifest(SETTINGS, [begun]).write(tmp_path)
    assert read_manifest(tmp_path, SETTINGS | setting).settings == SETTINGS | setting
    begun.parts[part] = {}
    IterateManifest(SETTINGS, [begun]).write(tmp_path)
    with pytest.raises(IterateError, match=f"another {next(iter(setting))}"):
        read_manifest(tmp_path, SETTINGS | setting)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"rounds": [{}], "settings": {}, "format": 1}'])
def test_what_is_no_manifest_is_named_and_left(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(IterateError, match=r"manifest\.json is not a manifest"):
        read_manifest(tmp_path, SETTINGS)
    assert (tmp_path / "manifest.json").read_text() == text


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"settings": SETTINGS, "rounds": [], "format": 99}))
    with pytest.raises(IterateError, match="has format 99, this version reads 1"):
        read_manifest(tmp_path, SETTINGS)
