"""Test that every command of the pages is started in CI, or its page says what it needs."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from markdown_pages import PAGES, ROOT, is_fragment, listed_commands, name_of
from typer.testing import CliRunner

from grpo_verl_ext.cli import app

STARTED_BY = yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text(encoding="utf-8"))
HERE = "tests/docs/test_commands.py::test_a_command_runs_as_it_stands"
ALL_PAGES = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "examples/ablations/RESULTS.md",
    ROOT / "examples/anatomy.md",
    ROOT / "examples/tasks/README.md",
    ROOT / "examples/teacher/README.md",
    ROOT / "recipe/grpo_verl_ext/README.md",
]


def starter(words: str) -> str | None:
    """What starts a command: the entry with the longest text of those that it matches."""
    found = [entry for entry in STARTED_BY if re.fullmatch(pattern(entry), words)]
    return STARTED_BY[max(found, key=len)] if found else None


def pattern(entry: str) -> str:
    """… at the end, after a space, stands for nothing, too."""
    any_more = re.escape(entry).replace(re.escape(" …"), "(?: .*)?")
    return any_more.replace(re.escape("…"), r"\S*")


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_every_command_is_started_by_something_or_says_what_it_needs(page: Path) -> None:
    neither = [
        command.words
        for command in listed_commands(page)
        if not is_fragment(command.words) and not command.needs and starter(command.words) is None
    ]
    assert neither == [], "a line of tests/docs/commands.yaml, or beside it: # needs GPUs"


def test_what_is_listed_stands_on_a_page() -> None:
    shown = [command.words for page in ALL_PAGES for command in listed_commands(page)]
    stale = [entry for entry in STARTED_BY if not any(re.fullmatch(pattern(entry), words) for words in shown)]
    assert stale == []


@pytest.mark.parametrize("where", sorted(set(STARTED_BY.values())))
def test_what_starts_it_is_there(where: str) -> None:
    file, _, name = where.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert not name or re.search(rf"^ *def {name}\(", text, re.M)


def test_ci_starts_what_is_its_own() -> None:
    assert "bash tests/run.sh --ci" in (ROOT / ".ci/run").read_text(encoding="utf-8")
    script = (ROOT / "tests/run.sh").read_text(encoding="utf-8")
    for line in ("bash examples/setup_cpu.sh", "sphinx-build -W", '"${parallel[@]}" "$@"'):
        assert line in script


def run_here() -> list[str]:
    shown = {command.words for page in ALL_PAGES for command in listed_commands(page)}
    return sorted(words for words in shown if starter(words) == HERE)


@pytest.mark.ci
@pytest.mark.parametrize("words", run_here())
def test_a_command_runs_as_it_stands(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the examples; a report finds the results that are kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    arguments = shlex.split(words.removeprefix("grpo-verl-ext "))
    command = " ".join(arguments[:2])
    if command == "ablate report":
        kept = ROOT / "examples/ablations/results" / Path(arguments[2]).name
        shutil.copytree(kept, arguments[2], ignore=shutil.ignore_patterns("report.*"))
    finished = CliRunner().invoke(app, arguments)
    if command == "ablate report":  # a table that was read is left as it is
        assert Path(arguments[2], "metrics.parquet").read_bytes() == (kept / "metrics.parquet").read_bytes()
    assert finished.exit_code == 0, finished.output
    assert [phrase for phrase in SAYS[command] if phrase not in finished.output] == []


SAYS = {
    # 4 variants with 16 seeds
    "ablate plan": ["64 of 64 runs to do", "5 comparisons of the mean over steps of gold_response/right"],
    # the kept report.md has this difference
    "ablate report": ["+0.026 (96% interval 0.010 to 0.042"],
    "iterate plan": ["reward_model", "+algo@_global_=grpo"],
}
