"""Refresh the reference during a training, and check that there is one."""
