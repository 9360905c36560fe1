"""Test the record of the software that a result was made with."""

from grpo_verl_ext.runs.provenance import git_revision, versions


def test_what_decides_the_numbers_is_recorded() -> None:
    assert {"python", "grpo-verl-ext", "verl", "torch", "transformers", "trl"} <= versions().keys()
    revision = git_revision()
    assert revision is None or len(revision.removesuffix("+changes")) == 40
