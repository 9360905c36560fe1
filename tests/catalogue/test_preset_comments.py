"""Test which comment of a preset's file is taken for the source of which value."""

import pytest

from grpo_verl_ext.catalogue import PRESETS, Preset
from grpo_verl_ext.catalogue.presets import WIRING

FILE = """# @package _global_
# A paper.

algorithm:
  # eq. 1
  adv_estimator: a
  norm: true
  grpo_ext:
    # ours: a name
    preset: p
    other: 1
  # §2,
  # in two lines
  nested:
    one: 1
    # §3
    two: ${a.b}  # said nowhere
    three: [1, 2]
actor:
  loss: y
"""


def test_a_comment_is_for_what_follows_it_in_its_section() -> None:
    assert Preset(text=FILE).comments == {
        "algorithm.adv_estimator": "eq. 1",
        "algorithm.norm": "eq. 1",
        "algorithm.grpo_ext.preset": "ours",
        "algorithm.nested.one": "§2, in two lines",
        "algorithm.nested.two": "§3",
        "algorithm.nested.three": "§3",
    }


@pytest.mark.parametrize("name", PRESETS)
def test_every_value_of_a_preset_has_a_source(name: str) -> None:
    """A loss without a comment is the paper's own, which the record names."""
    without = {key for key in PRESETS[name].leaves if not PRESETS[name].comments.get(key)}
    assert without <= {"actor_rollout_ref.actor.policy_loss.loss_mode", *WIRING}
    assert set(PRESETS[name].comments) <= set(PRESETS[name].leaves)
