"""Helpers shared by several parts of the package: files, typed JSON and YAML, plots, generation."""
