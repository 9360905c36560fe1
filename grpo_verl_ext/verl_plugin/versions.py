"""Check the version of verl, before anything of verl is imported, and list the versions that are tested."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from packaging.version import Version

from grpo_verl_ext.utils.errors import Problem

VERL_FROM, VERL_BELOW = "0.9", "0.10"

TESTED = {
    "verl": "0.9.1",
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
    if find_spec("transfer_queue") is not None:
        return None
    return Problem(
        "trainer.use_v1",
        True,
        why="TransferQueue is not installed: verl's trainer moves its samples through it, but verl's "
        "metadata does not ask for it",
        fix=f"pip install 'TransferQueue>={TESTED['TransferQueue']}'",
    )


class UnsupportedVerlError(ImportError):
    """verl is missing, or its version is not supported."""


def require_supported_verl() -> None:
    """Refuse a version of verl with other hooks than the plugin needs.

    Raises:
        UnsupportedVerlError: the message has the line that installs a supported version.
    """
    remedy = f"Type: pip install 'verl>={VERL_FROM},<{VERL_BELOW}'"
    try:
        found = Version(version("verl"))
    except PackageNotFoundError as error:
        raise UnsupportedVerlError(f"verl is not installed. {remedy}") from error
    if not Version(VERL_FROM) <= found < Version(VERL_BELOW):
        raise UnsupportedVerlError(
            f"verl {found} is installed; grpo_verl_ext works with verl >= {VERL_FROM} and < {VERL_BELOW}. "
            f"{remedy}"
        )
