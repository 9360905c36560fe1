"""Test which verl is found on a path of made-up installations, and how well it is said to be known."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from grpo_verl_ext.utils.which_verl import UnsupportedVerlError, which_verl

INSTALL = "Type: pip install 'verl>=0.9.1,<0.10'"
REINSTALL = "Type: pip install --force-reinstall --no-deps 'verl>=0.9.1,<0.10'"


def add_module(site: Path, version: str) -> None:
    (site / "verl" / "version").mkdir(parents=True)
    (site / "verl" / "__init__.py").touch()
    (site / "verl" / "version" / "version").write_text(f"{version}\n")


def add_metadata(site: Path, version: str, origin: dict[str, object] | None = None) -> None:
    info = site / f"verl-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n")
    if origin:
        (info / "direct_url.json").write_text(json.dumps(origin))


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders that are the whole path."""
    found = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(sys, "path", [str(folder) for folder in found])
    monkeypatch.delitem(sys.modules, "verl", raising=False)
    importlib.invalidate_caches()
    return found


def refusal() -> str:
    with pytest.raises(UnsupportedVerlError) as refused:
        which_verl()
    return str(refused.value)


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.9.1", "is a tested version"),
        ("0.9.7.post1", "is newer than 0.9.1, the newest tested version"),
        (
            "0.10.0.dev0",
            "is a development version, which was not tested; the newest tested version is 0.9.1",
        ),
        ("0.10.0rc1", "is a development version, which was not tested; the newest tested version is 0.9.1"),
    ],
)
def test_how_well_a_release_is_known(version: str, known: str, sites: tuple[Path, Path]) -> None:
    first, _ = sites
    add_module(first, version)
    add_metadata(first, version)
    found = which_verl()
    assert found.words == f"verl {version} in {first / 'verl'} {known}"
    assert found.is_untested_development == ("development" in known)
    assert found.warnings == [found.words] * found.is_untested_development


@pytest.mark.parametrize(
    "origin", [{"dir_info": {"editable": True}}, {"vcs_info": {"vcs": "git"}}, {"archive_info": {}}]
)
def test_a_checkout_is_told_from_a_release(origin: dict[str, object], sites: tuple[Path, Path]) -> None:
    first, second = sites
    add_module(second, "0.9.1")
    add_metadata(first, "0.9.1", origin)
    assert which_verl().is_checkout == ("archive_info" not in origin)
    assert ("is a checkout, whose code may differ" in which_verl().words) == which_verl().is_checkout


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0", "0.9.1rc1", "0.10.0", "0.11.0.dev0", "main"])
def test_a_version_that_is_not_supported_is_refused(version: str, sites: tuple[Path, Path]) -> None:
    first, _ = sites
    add_metadata(first, version)
    (first / "verl").mkdir()
    (first / "verl" / "__init__.py").touch()
    works_with = "grpo_verl_ext works with verl >= 0.9.1 and < 0.10"
    assert refusal() == f"verl {version} is installed; {works_with}. {INSTALL}"


class TestHalfInstalled:
    def test_nothing_is_there(self, sites: tuple[Path, Path]) -> None:
        assert refusal() == f"verl is not installed. {INSTALL}"

    def test_metadata_without_a_module(self, sites: tuple[Path, Path]) -> None:
        first, _ = sites
        add_metadata(first, "0.9.1")
        assert refusal() == (
            f"verl is half installed: {first} has the metadata of verl 0.9.1, but Python finds no module "
            f"verl. {REINSTALL}"
        )

    def test_a_folder_called_verl_is_no_module(self, sites: tuple[Path, Path]) -> None:
        """Such as the clone's, seen from the folder in which it lies."""
        first, _ = sites
        (first / "verl").mkdir(parents=True)
        assert refusal() == f"verl is not installed. {INSTALL}"

    @pytest.mark.parametrize("leaves_folder", [False, True])
    def test_a_module_without_metadata(self, leaves_folder: bool, sites: tuple[Path, Path]) -> None:
        first, _ = sites
        add_module(first, "0.9.1")
        if leaves_folder:
            (first / "verl-0.9.1.dist-info").mkdir()
        said = f"verl is half installed: {first / 'verl'} has the module, but no metadata tell its version."
        assert refusal() == f"{said} {REINSTALL}"
        (first / "setup.py").touch()
        assert refusal() == f"{said} Type: pip install --no-deps -e {first}"


class TestTwoOnThePath:
    def test_metadata_of_another_than_the_module_are_refused(self, sites: tuple[Path, Path]) -> None:
        """Else checks that ask for the version would judge another verl than the one that trains."""
        first, second = sites
        add_module(first, "0.10.0.dev")
        add_module(second, "0.9.1")
        add_metadata(second, "0.9.1")
        said = (
            f"two verls are on the path: Python imports verl 0.10.0.dev0 from {first / 'verl'}, but the "
            f"metadata in {second} are those of verl 0.9.1."
        )
        assert refusal() == f"{said} {REINSTALL}"
        (first / "pyproject.toml").touch()
        assert refusal() == f"{said} Type: pip install --no-deps -e {first}"

    def test_one_behind_the_other_is_a_warning(self, sites: tuple[Path, Path]) -> None:
        first, second = sites
        for folder, version in ((first, "0.9.2"), (second, "0.9.1")):
            add_module(folder, version)
            add_metadata(folder, version)
        found = which_verl()
        assert (str(found.version), found.folder) == ("0.9.2", first / "verl")
        assert found.another == (
            f"another verl is in {second / 'verl'}: a process with another path imports that one. Type "
            f"there: pip uninstall verl, or take its folder out of PYTHONPATH"
        )
        assert found.warnings == [found.another]
