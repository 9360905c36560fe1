"""Fixtures for scripts."""

from scripts import files, notes, run, started  # noqa: F401
