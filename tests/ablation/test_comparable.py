"""Test that a run of another start, task or version, or of changed sources, is named and left out."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.ablation.declaration import Control, Expectation, Primary
from grpo_verl_ext.ablation.grid import runs_of
from grpo_verl_ext.ablation.results import read_results

MODEL, DATA = "actor_rollout_ref.model.path", "data.train_files"
GOLD = "algorithm.grpo_ext.gold_responses.files"
TEACHER = "distillation.teacher_models.teacher_model.model_path"
NOT_THE_BASES = "differs from that of base/seed-2"
SEEDS = (1, 2, 3)
Grid = Callable[..., None]
DECLARED = {
    "primary": Primary("acc", "final"),
    "margin": 0.05,
    "expect": [Expectation("other", "different")],
    "control": Control("other", "different"),
}


def inputs(seed: int, **changes: str) -> dict[str, dict[str, str]]:
    return {"inputs": {MODEL: f"start {seed}", DATA: f"prompts {seed}", **changes}}


@pytest.fixture
def grid(grid_of, leave) -> Grid:
    """Finished runs of each variant and seed; ``of`` changes records."""

    def grid(of: Mapping[tuple[str, int], dict[str, Any]], **more: Any) -> None:
        for run in runs_of(grid_of(["base", "other", "third"], ["acc"], seeds=list(SEEDS), **more)):
            folder = leave(run.variant, run.seed, {2: {"acc": run.seed + len(run.variant)}})
            begun = {"overrides": run.training.overrides, "steps": 2, "git_revision": "abc"}
            begun |= {"versions": {"torch": "2", "verl": "1"}, **inputs(run.seed)}
            (folder / "run.json").write_text(json.dumps(begun | of.get((run.variant, run.seed), {})))

    return grid


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (inputs(2, **{MODEL: "another"}), f"its {MODEL} {NOT_THE_BASES}"),
        (inputs(2, **{DATA: "another"}), f"its {DATA} {NOT_THE_BASES}"),
        ({"inputs": {MODEL: "start 2"}}, f"its {DATA} {NOT_THE_BASES}"),
        ({"versions": {"torch": "3", "verl": "1"}}, "it was made with torch 3, and base/seed-2 with 2"),
        ({"versions": {"torch": "2"}}, "it was made with verl none, and base/seed-2 with 1"),
        ({"overrides": ["x=2"]}, "its overrides or steps are not those of the grid"),
        ({"steps": 3}, "its overrides or steps are not those of the grid"),
    ],
)
def test_one_is_named_and_left_out(ablate, grid, tmp_path: Path, change, why: str) -> None:
    grid(of={("other", 2): change})
    results = read_results(tmp_path)
    assert results.left_out == {("other", 2): why}
    rows = {(row["variant"], row["measure"]): row for row in results.rows}
    assert rows["other", "final"]["by_seed"] == {seed: seed + len("other") for seed in (1, 3)}
    printed = ablate("report", tmp_path).output
    assert f"other/seed-2 is left out: {why}. To train it again, move its folder away" in printed


@pytest.mark.parametrize("key", [GOLD, TEACHER])
def test_other_files_are_compared_where_both_records_have_them(grid, tmp_path: Path, key: str) -> None:
    """Records of earlier versions have no hash of them."""
    of = {("base", seed): inputs(seed, **{key: "one"}) for seed in SEEDS}
    of |= {("other", 1): inputs(1, **{key: "one"}), ("other", 2): inputs(2, **{key: "another"})}
    grid(of=of)
    assert read_results(tmp_path).left_out == {("other", 2): f"its {key} {NOT_THE_BASES}"}


@pytest.mark.parametrize(
    ("revision", "why"),
    [
        ("abc+changes", "its sources differed from their commit (abc+changes)"),
        ("def", "its commit is def, and that of base/seed-2 abc"),
    ],
)
def test_a_declared_pair_is_of_one_commit_without_changes(grid, tmp_path: Path, revision, why) -> None:
    """An exploratory grid keeps them, with a warning."""
    for declaration, wanted in (({}, {}), (DECLARED, {("other", 2): why})):
        grid(of={("other", 2): {"git_revision": revision}}, **declaration)
        assert read_results(tmp_path).left_out == wanted
        shutil.rmtree(tmp_path)


def test_a_declared_run_without_a_record_does_not_count(grid, tmp_path: Path) -> None:
    grid(of={}, **DECLARED)
    (tmp_path / "other" / "seed-2" / "run.json").unlink()
    assert read_results(tmp_path).left_out == {("other", 2): "it has no record, as other runs have"}


@pytest.mark.parametrize("key", [GOLD, TEACHER])
def test_a_variant_with_a_teacher_of_its_own_has_the_same_start(grid, tmp_path: Path, key: str) -> None:
    of = {("base", seed): inputs(seed, **{key: "one"}) for seed in SEEDS}
    of |= {("other", seed): inputs(seed, **{key: "another"}) for seed in SEEDS}
    of["other", 2] = inputs(2, **{key: "another", MODEL: "another"})
    grid(of=of, axes={"algo": {"base": [], "other": [f"{key}=x"], "third": []}})
    assert read_results(tmp_path).left_out == {("other", 2): f"its {MODEL} {NOT_THE_BASES}"}


@pytest.mark.parametrize(
    ("override", "judged"),
    [
        *((each, False) for each in ("+task=chain_sum", "task.n=3", "data.train_files=x", f"{MODEL}=x")),
        *((each, True) for each in ("data.train_batch_size=8", "data.max_response_length=9")),
    ],
)
def test_a_variant_that_chooses_its_model_may_have_another(grid, tmp_path: Path, override, judged) -> None:
    """To read the same data in another way is not to choose it."""
    axes = {"algo": {"base": [], "other": [override], "third": []}}
    grid(of={("other", 2): inputs(2, **{MODEL: "x"})}, axes=axes)
    assert read_results(tmp_path).left_out.keys() == ({("other", 2)} if judged else set())


def test_records_of_earlier_versions_are_not_judged(grid, tmp_path: Path) -> None:
    earlier = {"inputs": {}, "versions": {}, "git_revision": "abc+changes"}
    grid(of={("other", 1): earlier}, **DECLARED)
    assert read_results(tmp_path).left_out == {}


@pytest.mark.parametrize("baseline", ["unfinished", "of changed sources"])
def test_a_declared_pair_is_judged_without_its_baseline(grid, tmp_path: Path, baseline: str) -> None:
    of = {("third", 2): {"git_revision": "def", **inputs(2, **{MODEL: "another"})}}
    of |= {("base", 2): {"git_revision": "abc+changes"}}
    grid(of=of, **{**DECLARED, "expect": [Expectation("third", "different", against="other")]})
    if baseline == "unfinished":
        (tmp_path / "base" / "seed-2" / "attempt-1.jsonl").unlink()
    found = read_results(tmp_path).left_out
    assert found["third", 2].startswith("its commit is def, and that of")
    assert ("other", 2) not in found
    if baseline == "unfinished":
        of_other = "that of other/seed-2"
        why = f"its commit is def, and {of_other} abc; its {MODEL} differs from {of_other}"
        assert found == {("third", 2): why}


def test_variants_with_the_same_model_of_an_axis_are_compared_in_it(grid, tmp_path: Path) -> None:
    """Two axes, of which one sets the model."""
    axes = {
        "algo": {"base": [], "other": [], "third": []},
        "size": {"small": [f"{MODEL}=s"], "large": [f"{MODEL}=l"]},
    }
    names = [f"{algo}-{size}" for algo in axes["algo"] for size in axes["size"]]
    expect = [Expectation("third-large", "different", against="other-large")]
    declared = {**DECLARED, "expect": expect, "control": Control("other-small", "different")}
    sizes = {(name, seed): name.rpartition("-")[2] for name in names for seed in SEEDS}
    sizes["third-large", 2] = "larger"
    of = {run: inputs(run[1], **{MODEL: size}) for run, size in sizes.items()}
    grid(of, **declared, axes=axes, baseline=["base", "small"])
    why = f"its {MODEL} differs from that of other-large/seed-2"
    assert read_results(tmp_path).left_out == {("third-large", 2): why}
