"""Which verl Python would import here, and how well it is known. Nothing here imports verl."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from packaging.version import InvalidVersion, Version

_FROM, _BELOW = "0.9.1", "0.10"
TESTED = ("0.9.1",)
"""Versions with which the tests were run, the newest last."""
INSTALL = f"pip install 'verl>={_FROM},<{_BELOW}'"
"""The line that installs a supported verl."""
_REINSTALL = f"pip install --force-reinstall --no-deps 'verl>={_FROM},<{_BELOW}'"


class UnsupportedVerlError(ImportError):
    """verl is missing, only partly installed, installed twice, or of a version that is not supported."""


@dataclass(frozen=True)
class WhichVerl:
    """A supported verl.

    Attributes:
        version: as its metadata tell it.
        folder: of the module.
        is_checkout: it was installed from a folder or a repository, so its code may be any.
        others: folders of further verls that are installed on the path.
    """

    version: Version
    folder: Path
    is_checkout: bool = False
    others: tuple[Path, ...] = ()

    @property
    def is_untested_development(self) -> bool:
        """Whether it is a version before a release, and was not tested."""
        return self.version.is_prerelease and str(self.version) not in TESTED

    @property
    def words(self) -> str:
        """A sentence that says how well this verl is known."""
        return f"verl {self.version} in {self.folder} {self._known}"

    @property
    def _known(self) -> str:
        tested, newest = ", ".join(TESTED), TESTED[-1]
        if self.is_untested_development:
            return f"is a development version, which was not tested; the newest tested version is {newest}"
        if self.is_checkout:
            return f"is a checkout, whose code may differ from the release; tested are {tested}"
        if str(self.version) in TESTED:
            return "is a tested version"
        return f"is newer than {newest}, the newest tested version"

    @property
    def another(self) -> str:
        """A warning with the line to type where further verls are installed; empty where none is."""
        if not self.others:
            return ""
        where = ", ".join(map(str, self.others))
        return (
            f"another verl is in {where}: a process with another path imports that one. Type there: "
            f"pip uninstall verl, or take its folder out of PYTHONPATH"
        )

    @property
    def warnings(self) -> list[str]:
        """Sentences about what may go wrong with this verl."""
        return [each for each in (self.words if self.is_untested_development else "", self.another) if each]


def which_verl() -> WhichVerl:
    """Return the verl that Python would import here.

    Raises:
        UnsupportedVerlError: there is none, or none that is supported; the message has the line to type.
    """
    spec = find_spec("verl")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    # A broken installation leaves a folder without metadata behind.
    found = distributions(name="verl")
    installed = [each for each in found if each.read_text("METADATA") or each.read_text("PKG-INFO")]
    if folder is None:
        raise UnsupportedVerlError(_without_module(installed))
    if not installed:
        raise UnsupportedVerlError(
            f"verl is half installed: {folder} has the module, but no metadata tell its version. "
            f"Type: {_from_checkout(folder)}"
        )
    try:
        version = Version(installed[0].version)
    except InvalidVersion as error:
        raise UnsupportedVerlError(_unsupported(installed[0].version)) from error
    own = _own_version(folder)
    if own is not None and own != version:
        raise UnsupportedVerlError(
            f"two verls are on the path: Python imports verl {own} from {folder}, but the metadata in "
            f"{_location(installed[0])} are those of verl {version}. Type: {_from_checkout(folder)}"
        )
    if not Version(_FROM) <= version < Version(_BELOW):
        raise UnsupportedVerlError(_unsupported(str(version)))
    modules = {_location(each) / "verl" for each in installed}
    others = [each for each in modules if (each / "__init__.py").is_file() and not each.samefile(folder)]
    return WhichVerl(version, folder, _is_checkout(installed[0], folder), tuple(sorted(others)))


def _without_module(installed: list[Distribution]) -> str:
    if not installed:
        return f"verl is not installed. Type: {INSTALL}"
    return (
        f"verl is half installed: {_location(installed[0])} has the metadata of verl "
        f"{installed[0].version}, but Python finds no module verl. Type: {_REINSTALL}"
    )


def _unsupported(version: str) -> str:
    works_with = f"grpo_verl_ext works with verl >= {_FROM} and < {_BELOW}"
    return f"verl {version} is installed; {works_with}. Type: {INSTALL}"


def _own_version(folder: Path) -> Version | None:
    """Return what the module says of itself, in the file that verl reads when it is imported."""
    file = folder / "version" / "version"
    return Version(file.read_text(encoding="utf-8").strip()) if file.is_file() else None


def _location(installed: Distribution) -> Path:
    return Path(str(installed.locate_file("")))


def _is_checkout(installed: Distribution, folder: Path) -> bool:
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    return "vcs_info" in origin or "dir_info" in origin or _is_project(folder.parent)


def _is_project(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("pyproject.toml", "setup.py"))


def _from_checkout(folder: Path) -> str:
    """Return the line that gives a module its metadata."""
    return f"pip install --no-deps -e {folder.parent}" if _is_project(folder.parent) else _REINSTALL
