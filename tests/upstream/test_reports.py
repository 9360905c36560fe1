"""Test the form of the reports for verl, and the script that tries their patches.

Not covered: that the patches apply to verl and their tests pass, which needs a clone: ``upstream/check.sh``.
"""

import re
import subprocess
from pathlib import Path

import pytest
from markdown_pages import anchors, links

UPSTREAM = Path(__file__).parents[2] / "upstream"
REPORTS = sorted(UPSTREAM.glob("*.patch"))
PAGES = sorted(UPSTREAM.glob("*.md"))


@pytest.mark.parametrize("patch", REPORTS, ids=lambda patch: patch.stem)
class TestPatch:
    def test_it_changes_something_and_tests_it(self, patch: Path) -> None:
        shown = subprocess.run(
            ["git", "apply", "--numstat", str(patch)], capture_output=True, text=True, check=True
        )
        files = [line.split("\t")[2] for line in shown.stdout.splitlines()]
        assert [file for file in files if file.startswith("tests/")]
        assert [file for file in files if not file.startswith("tests/")]

    def test_it_has_little_of_verls_lines(self, patch: Path) -> None:
        """One line of context around each change: git needs no more."""
        hunks = re.split(r"^@@.*$", patch.read_text(encoding="utf-8"), flags=re.M)[1:]
        context = [len(re.findall(r"^ ", hunk.split("\ndiff --git")[0], re.M)) for hunk in hunks]
        changes = [len(re.findall(r"^[+-]", hunk.split("\ndiff --git")[0], re.M)) for hunk in hunks]
        assert all(around <= changed + 2 for around, changed in zip(context, changes, strict=True))

    def test_it_has_a_report_in_the_table_with_its_thread(self, patch: Path) -> None:
        text = (UPSTREAM / f"{patch.stem}.md").read_text(encoding="utf-8")
        assert text.startswith("# [")
        assert re.search(r"\bThreads?:\s", text)
        assert f"[{patch.stem}]({patch.stem}.md)" in (UPSTREAM / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        if target.startswith("https:"):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def a_clone(folder: Path, *, tested: str) -> Path:
    """A repository called verl with one file, and the patches of a folder upstream beside check.sh."""
    clone = folder / "verl"
    (clone / "verl").mkdir(parents=True)
    (clone / "verl" / "one.txt").write_text("1\n")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", "-C", str(clone)]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], check=True)
    (clone / "verl" / "one.txt").write_text("2\n")
    (clone / "tests").mkdir()
    (clone / "tests" / "test_one.py").write_text(
        f"from pathlib import Path\n\n\ndef test():\n    {tested}\n", encoding="utf-8"
    )
    subprocess.run([*git, "add", "-AN"], check=True)
    patch = subprocess.run([*git, "diff", "-U1"], check=True, capture_output=True, text=True).stdout
    subprocess.run([*git, "reset", "-q", "--hard"], check=True)
    subprocess.run([*git, "clean", "-fdq"], check=True)
    (folder / "check.sh").write_text((UPSTREAM / "check.sh").read_text(encoding="utf-8"))
    (folder / "one.patch").write_text(patch)
    return clone


class TestCheck:
    def test_a_test_that_fails_before_and_passes_after(self, tmp_path: Path) -> None:
        clone = a_clone(tmp_path, tested="assert Path('verl/one.txt').read_text() == '2\\n'")
        command = ["bash", str(tmp_path / "check.sh"), str(clone), "one"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr
        assert found.stdout.splitlines()[1:] == ["one", "  before: 1 failed", "  after: 1 passed"]
        assert (clone / "verl" / "one.txt").read_text() == "1\n"

    @pytest.mark.parametrize(
        ("tested", "ends"), [("assert True", "0 before and 0"), ("assert False", "1 before and 1")]
    )
    def test_one_that_shows_nothing(self, tested: str, ends: str, tmp_path: Path) -> None:
        command = ["bash", str(tmp_path / "check.sh"), str(a_clone(tmp_path, tested=tested)), "one"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 1
        assert f"WRONG: pytest ended with {ends} after; wanted are 1 and 0" in found.stdout
