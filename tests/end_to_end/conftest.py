"""Fixture: the embedded task, for trainings."""

from verl_runs import chain_sum  # noqa: F401
