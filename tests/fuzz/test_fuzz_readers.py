"""Fuzz files that a user wrote or that were corrupted: they are read, or refused by an error of ours.

Folders of grids and rounds, of several files, are in test_fuzz_state.py.
"""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import DEEP, as_json, fuzzing, json_files, mutated, texts

from grpo_verl_ext.ablation.grid import AblationError, GridRun, GridSettings, read_grid, runs_of
from grpo_verl_ext.ablation.kept import GRID
from grpo_verl_ext.ablation.state import NOTE, RUN_RECORD, Job, noted_job, read_record
from grpo_verl_ext.ablation.table import read_results
from grpo_verl_ext.iterate.examples import Pair, read_examples
from grpo_verl_ext.iterate.rounds import IterateManifest, read_manifest
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, read_settings
from grpo_verl_ext.runs.metrics import (
    CorruptDumpError,
    CorruptMetricsError,
    Response,
    read_dump,
    read_metrics,
)
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.documents import from_plain

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
RESPONSE: dict[str, object] = {
    "input": "1+1=?",
    "output": "2",
    "gts": "2",
    "score": 1.0,
    "step": 1,
    "uid": "a_0_0",
}
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


@fuzzing(60)
@given(content=yaml_files(GRID_OF_TWO), overrides=overrides)
@example(content=as_json(GRID_OF_TWO | {"seeds": [[]]}), overrides=[])
@example(content=as_json(GRID_OF_TWO | {"seed_overrides": [[]]}), overrides=[])
@example(content=as_json(GRID_OF_TWO), overrides=["folder=${folder}"])
def test_a_grid(file: Path, content: bytes, overrides: list[str]) -> None:
    file.write_bytes(content)
    try:
        settings = read_grid(file, overrides)
    except AblationError as error:
        assert str(error)
    else:
        assert type(settings) is GridSettings
        assert len(runs_of(settings)) >= len(settings.seeds) >= 1
        json.dumps(settings.as_dict())


@fuzzing(60)
@given(content=yaml_files(DECLARED), overrides=overrides)
@example(content=as_json(DECLARED), overrides=[])
@example(content=as_json(DECLARED), overrides=["expect.0.is=lower"])
@example(content=as_json(DECLARED), overrides=["expect[0].is=lower"])
@example(content=as_json(DECLARED | {"expect": ["${expect}"]}), overrides=[])
@example(content=as_json(DECLARED | {"expect": [None]}), overrides=[])
@example(content=as_json(DECLARED | {"expect": [[]], "checks": [{}]}), overrides=[])
@example(content=as_json(DECLARED | {"primary": "${control}"}), overrides=[])
def test_a_grid_with_a_declaration(file: Path, content: bytes, overrides: list[str]) -> None:
    file.write_bytes(content)
    try:
        settings = read_grid(file, overrides)
    except AblationError as error:
        assert str(error)
    else:
        assert from_plain(settings.as_dict() | {"folder": settings.folder}, GridSettings) == settings
        json.dumps(settings.as_dict())


@fuzzing(60)
@given(content=yaml_files(TWO_ROUNDS), overrides=overrides)
@example(content=as_json(TWO_ROUNDS), overrides=["folder=${folder}"])
@example(content=as_json(TWO_ROUNDS), overrides=["policy.overrides=[[1]]"])
@example(content=b"&a [*a]", overrides=[])
@example(content=b"", overrides=["["])
def test_settings_of_rounds(file: Path, content: bytes, overrides: list[str]) -> None:
    file.write_bytes(content)
    try:
        settings = read_settings(file, overrides)
    except IterateError as error:
        assert str(error)
    else:
        assert type(settings) is IterateSettings
        json.dumps(asdict(settings))


def left_in_place(file: Path, content: bytes, error: Exception) -> None:
    assert str(file) in str(error)
    assert file.read_bytes() == content


@fuzzing(60)
@given(lines=st.lists(json_files({"step": 1, "data": {"acc": 0.5}}), max_size=3), ends=st.booleans())
@example(lines=[DEEP], ends=True)
def test_metrics(file: Path, lines: list[bytes], ends: bool) -> None:
    content = b"\n".join(lines) + b"\n" * ends
    file.write_bytes(content)
    try:
        metrics = read_metrics([file])
    except CorruptMetricsError as error:
        left_in_place(file, content, error)
    else:
        assert all(type(step) is int and type(of_step) is dict for step, of_step in metrics.items())


@fuzzing(60)
@given(lines=st.lists(json_files(RESPONSE), max_size=3))
@example(lines=[DEEP])
def test_a_dump(file: Path, lines: list[bytes]) -> None:
    content = b"\n".join(lines)
    file.write_bytes(content)
    try:
        responses = read_dump(file)
    except CorruptDumpError as error:
        left_in_place(file, content, error)
    else:
        assert len(responses) == len([line for line in content.split(b"\n") if line])
        assert all(type(response) is Response for response in responses)


@fuzzing(60)
@given(lines=st.lists(json_files({"prompt": "p", "chosen": "c", "rejected": "r"}), max_size=3))
@example(lines=[DEEP])
def test_pairs(file: Path, lines: list[bytes]) -> None:
    content = b"\n".join(lines) + b"\n"
    file.write_bytes(content)
    try:
        pairs = read_examples(file, Pair)
    except IterateError as error:
        left_in_place(file, content, error)
    else:
        assert all(type(pair) is Pair for pair in pairs)
        assert all(type(text) is str for pair in pairs for text in (pair.prompt, pair.chosen, pair.rejected))


@fuzzing(60)
@given(content=json_files({"settings": {"rounds": 2}, "rounds": [ROUND_RECORD], "format": 1}))
@example(content=DEEP)
def test_a_manifest(file: Path, content: bytes) -> None:
    written = file.with_name("manifest.json")
    written.write_bytes(content)
    try:
        manifest = read_manifest(file.parent, {"rounds": 2})
    except IterateError as error:
        left_in_place(written, content, error)
    else:
        assert type(manifest) is IterateManifest
        assert all(type(record.parts) is dict for record in manifest.rounds)


@fuzzing(60)
@given(content=json_files(ROUND_RECORD))
@example(content=DEEP)
def test_a_round_in_a_manifest(file: Path, content: bytes) -> None:
    whole = b'{"settings": {"rounds": 2}, "format": 1, "rounds": [' + content + b"]}"
    test_a_manifest.hypothesis.inner_test(file, whole)


@fuzzing(60)
@given(content=json_files(GRID_OF_TWO | {"folder": None}))
@example(content=DEEP)
def test_the_grid_that_lies_with_its_runs(file: Path, content: bytes) -> None:
    written = file.with_name(GRID)
    written.write_bytes(content)
    try:
        results = read_results(file.parent)
    except AblationError as error:
        left_in_place(written, content, error)
    else:
        assert results.settings.base_variant in results.variants


def a_run(folder: Path) -> GridRun:
    return GridRun(("grpo",), 1, VerlRun(folder, ["a=1"], 2))


@fuzzing(60)
@given(content=json_files(RECORD_OF_A_RUN))
@example(content=DEEP)
def test_the_record_of_a_run(file: Path, content: bytes) -> None:
    written = file.with_name(RUN_RECORD)
    written.write_bytes(content)
    try:
        record = read_record(a_run(file.parent))
    except AblationError as error:
        left_in_place(written, content, error)
    else:
        assert record is not None
        assert vars(record).keys() == RECORD_OF_A_RUN.keys()
        assert type(record.overrides) is list
        assert type(record.versions) is dict


@fuzzing(60)
@given(
    content=json_files({"submission_id": "raysubmit_1", "address": "http://h:8265", "attempt": "attempt-1"})
)
@example(content=DEEP)
def test_the_note_of_a_job(file: Path, content: bytes) -> None:
    written = file.with_name(NOTE)
    written.write_bytes(content)
    try:
        job = noted_job(file.parent)
    except AblationError as error:
        left_in_place(written, content, error)
    else:
        assert type(job) is Job
        assert type(job.submission_id) is str
