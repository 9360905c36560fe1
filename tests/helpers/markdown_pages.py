"""Parse README and docs/: blocks of code, commands, links."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(
    r"(?:^<!-- (?P<marker>.*?) -->\n)?^```(?P<language>\{?[\w-]*\}?)\n(?P<text>.*?)^```$", re.M | re.S
)
LINK = re.compile(r"\]\((?P<target>[^)\s#]*)(?:#(?P<anchor>[^)\s]+))?\)")
NEEDS = re.compile(r"#.*\bneeds (?P<what>GPUs|hours|the network)")
COMMENT = re.compile(r"(^|\s)#\s.*$", re.M)


class Command(NamedTuple):
    """A line for a shell, and what the comment beside it, or in the line above, says that it needs."""

    words: str
    needs: str


class Block(NamedTuple):
    """Fenced code, and the HTML comment in the line above, if any."""

    page: str
    marker: str
    language: str
    text: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(name_of(page), m["marker"] or "", m["language"], m["text"]) for m in found]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def listed_commands(page: Path) -> list[Command]:
    """Lines of the blocks that a shell, or verl's command line, would read."""
    shell = [block.text for block in blocks(page) if block.language in ("", "bash")]
    lines = [line for text in shell for line in text.replace("\\\n", " ").splitlines()]
    found, above = [], ""
    for line in lines:
        words = " ".join(COMMENT.sub("", line).split())
        said = NEEDS.search(line) or NEEDS.search(above)
        if words:
            found.append(Command(words, said["what"] if said else ""))
        above = "" if words else line
    return found


def commands(page: Path) -> list[str]:
    """`listed_commands`, their words alone."""
    return [command.words for command in listed_commands(page)]


def is_fragment(words: str) -> bool:
    """Overrides alone, to be put into a command."""
    return bool(re.match(r"[+~]*[a-z][\w.]*\.\w+=", words))


def inline_code(page: Path) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(page))]


def links(page: Path) -> list[tuple[str, str | None]]:
    found = [(m["target"], m["anchor"]) for m in LINK.finditer(prose(page))]
    return [(target, anchor) for target, anchor in found if "://" not in target]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
