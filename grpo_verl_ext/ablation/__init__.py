"""Grids of trainings that differ in what is to be compared, and in nothing else."""
