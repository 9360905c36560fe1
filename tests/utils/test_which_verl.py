"""Test which verl is found on a path of made-up installations, and how well it is said to be known."""

import importlib
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


def add_metadata(site: Path, version: str) -> None:
    info = site / f"verl-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "verl", raising=False)
    importlib.invalidate_caches()
    return tmp_path


def refusal() -> str:
    with pytest.raises(UnsupportedVerlError) as refused:
        which_verl()
    return str(refused.value)


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.9.1", "is a tested version"), ("0.9.7.post1", "is newer; the newest tested version is 0.9.1")],
)
def test_how_well_a_release_is_known(version: str, known: str, site: Path) -> None:
    """Metadata of another verl do not count, for Python imports the module."""
    add_module(site, version)
    add_metadata(site, "0.8.0")
    assert which_verl().words == f"verl {version} in {site / 'verl'} {known}"


def test_a_checkout_is_told_from_a_release(site: Path) -> None:
    add_module(site, "0.9.1")
    (site / "setup.py").touch()
    assert "is a checkout, whose code may differ" in which_verl().words


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0", "0.9.1rc1", "0.10.0", "0.11.0.dev0"])
def test_a_version_that_is_not_supported_is_refused(version: str, site: Path) -> None:
    add_module(site, version)
    works_with = "grpo_verl_ext works with verl >= 0.9.1 and < 0.10"
    assert refusal() == f"{site / 'verl'}: verl {version} is installed; {works_with}. {INSTALL}"


@pytest.mark.parametrize("leaves_folder", [False, True])
def test_nothing_is_there_but_perhaps_a_folder_called_verl(leaves_folder: bool, site: Path) -> None:
    """Such as the clone's, seen from the folder in which it lies."""
    if leaves_folder:
        (site / "verl").mkdir()
    assert refusal() == f"verl is not installed. {INSTALL}"


def test_metadata_without_a_module(site: Path) -> None:
    """pip would install nothing, for the metadata say that it is there."""
    add_metadata(site, "0.9.1")
    assert refusal() == f"verl is not installed. {REINSTALL}"


@pytest.mark.parametrize("version", ["main", ""])
def test_a_module_without_a_version(version: str, site: Path) -> None:
    add_module(site, version)
    assert refusal().startswith(f"verl in {site / 'verl'} has no version: ")
    assert refusal().endswith(REINSTALL)
