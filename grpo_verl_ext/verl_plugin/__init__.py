"""The only part of the package that imports verl: registration, adapters, driver checks, CPU platform."""

from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

_VERL_FROM, _VERL_BELOW = "0.9", "0.10"


class UnsupportedVerlError(ImportError):
    """verl is missing, or its version is not supported."""


def require_supported_verl() -> None:
    """Refuse a version of verl with other hooks than the plugin needs.

    Raises:
        UnsupportedVerlError: the message has the line that installs a supported version.
    """
    remedy = f"Type: pip install 'verl>={_VERL_FROM},<{_VERL_BELOW}'"
    try:
        found = Version(version("verl"))
    except PackageNotFoundError as error:
        raise UnsupportedVerlError(f"verl is not installed. {remedy}") from error
    if not Version(_VERL_FROM) <= found < Version(_VERL_BELOW):
        raise UnsupportedVerlError(
            f"verl {found} is installed; grpo_verl_ext works with verl >= {_VERL_FROM} and < {_VERL_BELOW}. "
            f"{remedy}"
        )


require_supported_verl()

# verl loads this package as a plugin in the middle of its own import. Importing it here gives every module
# below the same order, whichever of them is asked for first.
import verl  # noqa: E402, F401
