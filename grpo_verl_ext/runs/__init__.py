"""Trainings of verl's own, each in a process and a folder of its own; imports nothing of verl."""
