"""Runs of verl's trainer, each in its own process and folder, and the files they leave; no import of verl."""
