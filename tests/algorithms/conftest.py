"""Hypothesis draws the same examples on every run, without a limit on time that a slow machine would miss."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("repeatable")
