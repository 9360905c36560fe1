"""The embedded task, as for the package's own trainings."""

from verl_runs import chain_sum  # noqa: F401
