"""GRPO, DAPO, Dr. GRPO and GVPO for verl: the pure mathematics, importable without verl."""

__version__ = "0.1.0"
