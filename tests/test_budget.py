"""Test the keeper of the house's size on a small house."""

import subprocess
import sys
from pathlib import Path

import pytest

BUDGET = Path(__file__).parents[1] / "tools" / "budget.py"


@pytest.fixture
def house(tmp_path: Path) -> Path:
    files = {
        "grpo_verl_ext/__init__.py": "",
        "grpo_verl_ext/short.py": "def short():\n    return 1\n",
        "grpo_verl_ext/config/algo/grpo.yaml": "",
        "README.md": "two words",
        "tools/budget.py": BUDGET.read_text(encoding="utf-8"),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def budget(house: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "tools/budget.py", *options]
    found = subprocess.run(command, cwd=house, check=False, stdout=subprocess.PIPE, text=True)
    return found.returncode, found.stdout


def with_function(house: Path, lines: int) -> None:
    body = "    pass\n" * (lines - 1)
    (house / "grpo_verl_ext" / "long.py").write_text(f"def too_long():\n{body}", encoding="utf-8")


def test_limits_follow_what_falls_and_never_rise(house: Path) -> None:
    file = house / "tools" / "budget.py"
    file.write_text(file.read_text().replace('per 1,000 lines": ', 'per 1,000 lines": 9'))  # of two lines
    assert budget(house, "--lower")[0] == 0
    lowered = file.read_text(encoding="utf-8")
    assert '    "lines of the package": 2,\n' in lowered
    assert '    "longest function": 2,\n' in lowered
    assert '    "words of README": 2,\n' in lowered
    with_function(house, 99)
    assert budget(house, "--lower")[0] == 1
    assert '    "longest function": 2,\n' in file.read_text(encoding="utf-8")
