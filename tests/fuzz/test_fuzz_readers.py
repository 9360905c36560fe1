"""Fuzz files that a user wrote or that were corrupted: they are read, or refused by an error of ours."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from strategies import DEEP, as_json, fuzzing, json_files, mutated, texts

from grpo_verl_ext.ablation import grid
from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.ablation.results import Results, read_results
from grpo_verl_ext.iterate.examples import Pair
from grpo_verl_ext.iterate.rounds import IterateManifest
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, read_settings
from grpo_verl_ext.runs.verl_run import CorruptFileError, Response, VerlRun, read_dump, read_metrics
from grpo_verl_ext.utils.documents import as_plain, parse_json

GRID_OF_TWO: dict[str, object] = {
    "folder": "somewhere",
    "steps": 2,
    "base": ["+platform=cpu"],
    "axes": {"algo": {"grpo": ["+algo=grpo"], "gvpo": ["+algo=gvpo"]}},
    "seeds": [1, 2],
    "seed_overrides": ["data.seed={seed}"],
    "baseline": ["grpo"],
    "metrics": ["critic/score/mean"],
}
DECLARED: dict[str, object] = GRID_OF_TWO | {
    "seeds": [1, 2, 3],
    "primary": {"metric": "critic/score/mean", "measure": "area"},
    "margin": 0.05,
    "alpha": 0.04,
    "starts": {"first": 3, "most": 3},
    "expect": [{"variant": "gvpo", "is": "higher"}],
    "checks": [{"metric": "a", "measure": "mean", "at_least": 0.1, "variants": ["grpo"]}],
    "control": {"variant": "gvpo", "is": "different"},
}
TWO_ROUNDS: dict[str, object] = {
    "folder": "somewhere",
    "rounds": 2,
    "seed": 1,
    "policy": {"steps": 3, "overrides": ["+algo=grpo"], "save_freq": 4},
    "reward_model": {"label": "a.b", "held_out": 0.1, "replay": 0.1, "trainer": {"learning_rate": 1e-3}},
    "measure": {"prompts": 2, "batch_size": 1},
}
RESPONSE: dict[str, object] = {"input": "1+1=?", "output": "2", "gts": "2"}
RESPONSE |= {"score": 1.0, "step": 1, "uid": "a_0_0"}
RECORD_OF_A_RUN: dict[str, object] = {
    "overrides": ["a=1"],
    "steps": 2,
    "git_revision": None,
    "versions": {"verl": "0.9.1"},
    "inputs": {"data.train_files": "0" * 64},
    "machine": "a processor, no AVX-512, 2 cores, OMP_NUM_THREADS=1",
    "began": "2026-01-01T00:00:00+00:00",
    "ended": None,
}
ROUND_RECORD: dict[str, object] = {
    "round": 1,
    "seed": 1001,
    "overrides": [],
    "git_revision": None,
    "versions": {},
    "parts": {"policy": {"steps": 3}},
}

overrides = st.lists(
    st.builds(
        lambda key, value: f"{key}={value}",
        st.sampled_from(["seeds", "axes.algo.dapo", "policy.steps", "folder", "rounds", "a"]) | texts,
        st.sampled_from(["", "[", "{", "???", "${a}", "${oc.env:NOWHERE}", "nan", "1e400", "[1,2]"]) | texts,
    )
    | texts,
    max_size=2,
)


def yaml_files(valid: dict[str, object]) -> st.SearchStrategy[bytes]:
    """Mutated at the top or one section down, as YAML; or any text, or any bytes."""
    sections = {key: section for key, section in valid.items() if isinstance(section, dict)}
    deeper = st.sampled_from(sorted(sections)).flatmap(
        lambda key: mutated(sections[key]).map(lambda section: valid | {key: section})
    )
    written = (mutated(valid) | deeper).map(lambda content: yaml.safe_dump(content, allow_unicode=True))
    special = st.sampled_from(
        ["???", "${folder}", "${nowhere}", "${oc.env:NOWHERE}", "${", "&a [*a]", "1e400"]
    )
    quoted = st.builds(lambda key, value: f"{key}: {value}\n", st.sampled_from(sorted(valid)), special)
    return (
        written.map(str.encode)
        | st.builds(lambda text, line: (text + line).encode(), written, quoted)
        | texts.map(str.encode)
        | st.binary(max_size=30)
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One name for all examples; each writes it anew."""
    return tmp_path_factory.mktemp("fuzz") / "file"


@pytest.mark.parametrize(
    ("read", "kind", "error", "whole"),
    [
        (grid.read_grid, GridSettings, grid.AblationError, GRID_OF_TWO),
        (grid.read_grid, GridSettings, grid.AblationError, DECLARED),
        (read_settings, IterateSettings, IterateError, TWO_ROUNDS),
    ],
    ids=["grid", "declared", "rounds"],
)
@fuzzing(60)
@given(data=st.data())
def test_a_file_of_a_user(file: Path, read, kind: type, error: type[Exception], whole, data) -> None:
    fits_or_is_refused(file, read, kind, error, data.draw(yaml_files(whole)), data.draw(overrides))


@pytest.mark.parametrize(
    ("content", "overrides"),
    [
        (as_json(GRID_OF_TWO | {"seeds": [[]]}), []),
        (as_json(GRID_OF_TWO | {"seed_overrides": [[]]}), []),
        (as_json(GRID_OF_TWO), ["folder=${folder}"]),
        (as_json(DECLARED), []),
        (as_json(DECLARED), ["expect.0.is=lower"]),
        (as_json(DECLARED), ["expect[0].is=lower"]),
        (as_json(DECLARED | {"expect": ["${expect}"]}), []),
        (as_json(DECLARED | {"expect": [None]}), []),
        (as_json(DECLARED | {"expect": [[]], "checks": [{}]}), []),
        (as_json(DECLARED | {"primary": "${control}"}), []),
        (b"&a [*a]", []),
        (b"", ["["]),
    ],
)
def test_what_was_once_no_message(file: Path, content: bytes, overrides: list[str]) -> None:
    fits_or_is_refused(file, grid.read_grid, GridSettings, grid.AblationError, content, overrides)


def fits_or_is_refused(file, read, kind, error, content: bytes, overrides: list[str]) -> None:
    file.write_bytes(content)
    try:
        settings = read(file, overrides)
    except error as refused:
        assert str(refused)
    else:
        assert type(settings) is kind
        json.dumps(asdict(settings))
        if kind is GridSettings:
            assert len(grid.runs_of(settings)) >= len(settings.seeds) >= 1
            assert parse_json(json.dumps(as_plain(settings) | {"folder": settings.folder}), kind) == settings


def lines(valid: dict[str, object], ending: bytes = b"\n") -> st.SearchStrategy[bytes]:
    return st.lists(json_files(valid), max_size=3).map(lambda each: b"\n".join(each) + ending)


def whole_manifest(record: bytes) -> bytes:
    return b'{"settings": {"rounds": 2}, "format": 1, "rounds": [' + record + b"]}"


def run_in(folder: Path) -> grid.GridRun:
    return grid.GridRun("grpo", 1, "grpo/seed-1", VerlRun(folder, ["a=1"], 2))


MANIFEST = {"settings": {"rounds": 2}, "rounds": [ROUND_RECORD], "format": 1}
NOTED = {"submission_id": "raysubmit_1", "address": "http://h:8265", "attempt": "attempt-1"}
WRITTEN_BY_A_PROGRAM = {
    "metrics": (lines({"step": 1, "data": {"acc": 0.5}}), lambda file: read_metrics([file]), dict),
    "cut metrics": (lines({"step": 1, "data": {"acc": 0.5}}, b""), lambda file: read_metrics([file]), dict),
    "dump": (lines(RESPONSE, b""), read_dump, list),
    "pairs": (lines({"prompt": "p", "chosen": "c", "rejected": "r"}), Pair.read, list),
    "manifest.json": (
        json_files(MANIFEST) | json_files(ROUND_RECORD).map(whole_manifest),
        lambda file: IterateManifest.read(file.parent, {"rounds": 2}),
        IterateManifest,
    ),
    grid.GRID: (json_files(GRID_OF_TWO | {"folder": None}), lambda file: read_results(file.parent), Results),
    grid.RUN_RECORD: (json_files(RECORD_OF_A_RUN), lambda file: run_in(file.parent).record(), grid.Record),
    grid.NOTE: (json_files(NOTED), lambda file: run_in(file.parent).job(), grid.Job),
}
"""File → its contents, how it is read, and the type of what was read."""


@pytest.mark.parametrize("name", WRITTEN_BY_A_PROGRAM)
@fuzzing(60)
@given(data=st.data())
def test_a_file_of_a_program(file: Path, name: str, data) -> None:
    read_or_left_in_place(file.with_name(name), data.draw(WRITTEN_BY_A_PROGRAM[name][0]))


@pytest.mark.parametrize("name", WRITTEN_BY_A_PROGRAM)
def test_brackets_without_end(file: Path, name: str) -> None:
    read_or_left_in_place(file.with_name(name), DEEP + b"\n")


def read_or_left_in_place(file: Path, content: bytes) -> None:
    _, read, kind = WRITTEN_BY_A_PROGRAM[file.name]
    file.write_bytes(content)
    try:
        found = read(file)
    except (grid.AblationError, IterateError, CorruptFileError) as error:
        assert str(file) in str(error)
        assert file.read_bytes() == content
    else:
        assert type(found) is kind
        if kind is list:
            assert all(type(each) in (Response, Pair) for each in found)
