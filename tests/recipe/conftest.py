"""The fixture of a model and data."""

from scripts import files  # noqa: F401
