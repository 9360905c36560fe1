"""Test that a preset's line, typed as the pages say, cannot train without the plugin."""

from pathlib import Path

from processes import Python

import grpo_verl_ext.config
from grpo_verl_ext.verl_plugin.compose import composed

ALGO = Path(grpo_verl_ext.config.__file__).parent / "algo"
COMPOSE = """
import runpy, sys
sys.argv = ["main_ppo", {word!r}, "--cfg", "job"]
runpy.run_module("verl.trainer.main_ppo", run_name="__main__")
"""


def test_without_the_plugin_hydra_refuses_the_group(python: Python) -> None:
    refused = python(COMPOSE.format(word="+algo@_global_=gvpo"), VERL_USE_EXTERNAL_PLUGINS="none")
    assert refused.returncode == 1
    assert "config group 'algo' does not exist" in refused.stderr


def test_the_short_form_is_a_key_without_the_plugin(python: Python) -> None:
    """The reason for the long one: verl would train PPO. Where this fails, the pages need no long form."""
    taken = python(COMPOSE.format(word="+algo=gvpo"), VERL_USE_EXTERNAL_PLUGINS="none")
    assert taken.returncode == 0
    assert "adv_estimator: gae" in taken.stdout


def test_with_the_plugin_both_forms_are_the_same() -> None:
    long, short = (composed([f"{group}=gvpo"]) for group in ("+algo@_global_", "+algo"))
    assert long == short
    assert "algo" not in long


def test_every_preset_is_of_the_global_package() -> None:
    """Else the two forms would differ."""
    presets = list(ALGO.glob("*.yaml"))
    assert presets
    assert all("# @package _global_" in preset.read_text() for preset in presets)
