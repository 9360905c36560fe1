"""Test what a shell's TAB offers: presets, groups, and keys with the values that the training would have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from processes import Python

import grpo_verl_ext
from grpo_verl_ext.launch.completion import complete_override, complete_preset
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.config import Options

PRESETS = {file.stem for file in Path(grpo_verl_ext.__file__).parent.glob("config/algo/*.yaml")}


def tab(*words: str) -> list[str]:
    """Press TAB behind the words, the last of which is unfinished, as bash does."""
    bash = {"_GRPO_VERL_EXT_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words)}
    printed = subprocess.run(
        [Path(sys.executable).with_name("grpo-verl-ext")],
        env={**os.environ, **bash, "COMP_CWORD": str(len(words) - (words[-1] != ""))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stderr == ""
    return printed.stdout.split()


def test_every_preset() -> None:
    assert {*complete_preset("")} == PRESETS
    assert complete_preset("gv") == ["gvpo", "gvpo_distill"]


def test_every_offered_value_is_the_one_that_the_training_has() -> None:
    config = composed(["+algo=gvpo"])
    offered = [each.partition("=") for each in complete_override([], "gvpo", "") if each[0] != "+"]
    assert len(offered) > 500
    for key, _, value in offered:
        if value:
            typed, chosen = OmegaConf.create(f"x: {value}").x, OmegaConf.select(config, key)
            assert str(typed).lower() == str(chosen).lower(), key  # verl has one true that is text


def test_every_option_that_a_preset_leaves_out_has_a_plus() -> None:
    section = "algorithm.grpo_ext."
    offered = [each.partition("=")[0] for each in complete_override([], "gvpo", section)]
    added = [each.partition("=")[0] for each in complete_override([], "gvpo", f"+{section}")]
    assert offered
    assert added
    assert {*offered, *(each[1:] for each in added)} == {section + name for name in Options.model_fields}


def test_groups_as_zsh_and_fish_have_them() -> None:
    assert complete_override([], None, "+algo=dap") == ["+algo=dapo"]
    assert complete_override([], None, "+plat") == ["+platform=cpu"]
    assert complete_override(["+algo=gvpo"], None, "trainer.nn") == ["trainer.nnodes=1"]
    assert complete_override([], None, "nothing.begins.so") == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("train dap", ["dapo"]),
        ("show gvpo actor_rollout_ref.actor.loss_agg_m", ["loss_agg_mode=seq-mean-token-sum"]),
        ("train gvpo +task = chain_sum_v", ["chain_sum_verbose"]),
        ("doctor +algo = dap", ["dapo"]),
        ("doctor +measure =", ["exact"]),
        ("doctor +algo = dapo trainer.nn", ["trainer.nnodes=1"]),
        ("migrate script.sh --algo max", ["maxrl"]),
    ],
)
def test_bash_which_makes_three_words_of_one(line: str, offered: list[str]) -> None:
    found = tab("grpo-verl-ext", *line.split())
    assert [each.removeprefix("actor_rollout_ref.actor.") for each in found] == offered


def test_nothing_heavy_is_imported(interpreter: Python) -> None:
    finished = interpreter(
        """
        import sys
        import grpo_verl_ext.cli
        from grpo_verl_ext.launch.completion import complete_override
        assert complete_override([], "gvpo", "trainer.")
        heavy = {"torch", "numpy", "verl", "ray", "hydra", "omegaconf", "transformers"}
        print(sorted(heavy & set(sys.modules)))
        """
    )
    assert finished.stdout == "[]\n", finished.stderr
