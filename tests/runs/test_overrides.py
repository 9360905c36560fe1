"""Test that verl receives any folder name unchanged."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_verl_ext.runs.verl_run import hydra_value

PARSER = OverridesParser.create()


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=12))
@example("/runs/grpo,lr=1e-3/seed-1")
@example("it's here")
@example("\\'")
@example("a\\")
@example("${x}")
@example("null")
@settings(derandomize=True, deadline=None, max_examples=300)
def test_hydra_reads_back_the_text(text: str) -> None:
    # As in an absolute path: words such as null and numbers stand for themselves only there.
    value = PARSER.parse_override(f"key={hydra_value('/' + text)}").value()
    assert str(value) == "/" + text


@pytest.mark.parametrize("plain", ["/tmp/a-b_c.d/e+f", "org/model"])
def test_a_plain_path_stays_plain(plain: str) -> None:
    assert hydra_value(plain) == plain
