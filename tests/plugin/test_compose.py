"""Test that compositions share what was read of a file, and nothing else."""

from pathlib import Path

from omegaconf import DictConfig
from processes import Python

from grpo_verl_ext.verl_plugin.compose import composed


def of(folder: Path, *overrides: str) -> DictConfig:
    return composed(overrides, config_path=str(folder), config_name="training").actor_rollout_ref


def test_a_composition_has_what_its_file_says_now(tmp_path: Path) -> None:
    file = tmp_path / "training.yaml"
    file.write_text("actor_rollout_ref: {n: 1}\n")
    assert of(tmp_path, "+actor_rollout_ref.more=3") == {"n": 1, "more": 3}
    changed = of(tmp_path)
    changed.n = 2
    assert of(tmp_path) == {"n": 1}
    file.write_text("actor_rollout_ref: {n: 10}\n")
    assert of(tmp_path) == {"n": 10}


def test_a_file_with_a_dot_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "of.two.yaml").write_text("actor_rollout_ref: {n: 2}\n")
    assert [
        composed([], config_path=str(tmp_path), config_name=name).actor_rollout_ref.n
        for name in ("of.two", "of.two.yaml")
    ] == [2, 2]


def test_compose_knows_the_presets_before_verl_is_imported(python: Python) -> None:
    found = python(
        """
        import sys
        import grpo_verl_ext
        assert "verl" not in sys.modules
        print(grpo_verl_ext.compose(["+algo=gvpo"]).algorithm.adv_estimator)
        """
    )
    assert found.stdout.split() == ["gvpo"], found.stderr
