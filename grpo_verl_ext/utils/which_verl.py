"""Which verl Python would import here, and how well it is known. Nothing here imports verl."""

from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

_FROM, _BELOW = "0.9.1", "0.10"
TESTED = ("0.9.1",)
"""Versions with which the tests were run, the newest last."""
INSTALL = f"pip install 'verl>={_FROM},<{_BELOW}'"
_REINSTALL = f"pip install --force-reinstall --no-deps 'verl>={_FROM},<{_BELOW}'"


class UnsupportedVerlError(ImportError):
    """verl is missing, only partly installed, or of a version that is not supported."""


class _WhichVerl(NamedTuple):
    version: Version
    words: str
    """A sentence that says where it is and how well it is known."""


def which_verl() -> _WhichVerl:
    """Return the verl that Python would import here."""
    spec = find_spec("verl")
    if spec is None or spec.origin is None:
        has_metadata = any(distributions(name="verl"))
        raise UnsupportedVerlError(f"verl is not installed. Type: {_REINSTALL if has_metadata else INSTALL}")
    folder = Path(spec.origin).parent
    try:  # the file that verl itself reads: metadata may be those of another one on the path
        version = Version((folder / "version" / "version").read_text("utf-8"))
    except (OSError, InvalidVersion) as error:
        raise UnsupportedVerlError(f"verl in {folder} has no version: {error}. Type: {_REINSTALL}") from error
    if not Version(_FROM) <= version < Version(_BELOW):
        works_with = f"grpo_verl_ext works with verl >= {_FROM} and < {_BELOW}"
        raise UnsupportedVerlError(f"{folder}: verl {version} is installed; {works_with}. Type: {INSTALL}")
    newest = f"the newest tested version is {TESTED[-1]}"
    if any((folder.parent / name).is_file() for name in ("pyproject.toml", "setup.py")):
        known = f"is a checkout, whose code may differ from the release; {newest}"
    else:
        known = "is a tested version" if str(version) in TESTED else f"is newer; {newest}"
    return _WhichVerl(version, f"verl {version} in {folder} {known}")
