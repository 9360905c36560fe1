"""Ablations: train each variant of a setup with every seed, and compare them paired by seed."""
