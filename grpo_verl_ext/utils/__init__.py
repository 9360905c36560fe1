"""Helpers shared by several parts of the package: files, documents, plots, generation."""
