"""The only part of the package that imports verl: registration, adapters, driver checks, CPU platform."""

import importlib.util

from grpo_verl_ext.utils import which_verl
from grpo_verl_ext.utils.errors import Problem

# Refuse a verl with other hooks than the plugin needs.
which_verl.which_verl()

# verl loads this package as a plugin in the middle of its own import. Importing it here gives every module
# below the same order, whichever of them is asked for first.
import verl  # noqa: E402, F401

TESTED = {
    "verl": which_verl.TESTED[-1],
    "torch": "2.13.0",
    "transformers": "5.10.4",
    "vllm": "0.28.0",
    "ray": "2.60.0",
    "tensordict": "0.10.0",
    "TransferQueue": "0.1.11",
}
"""Versions that the tests use (constraints/cpu.txt); others may work as well."""


def queue_missing() -> Problem | None:
    """Return a problem if TransferQueue is missing; verl's trainer needs it, but verl does not require it."""
    if importlib.util.find_spec("transfer_queue") is not None:
        return None
    return Problem(
        "trainer.use_v1",
        True,
        why="TransferQueue is not installed: verl's trainer moves its samples through it, but verl's "
        "metadata does not ask for it",
        fix=f"pip install 'TransferQueue>={TESTED['TransferQueue']}'",
    )
