"""Test that files are read into dataclasses, and that what does not fit is refused in one message."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from grpo_verl_ext.utils.documents import Document, as_plain, parse_json, read_lines, read_yaml


@dataclass
class Part:
    name: str
    is_: str | None = None


@dataclass(kw_only=True)
class Whole(Document):
    folder: str
    steps: int
    rate: float = 0.5
    labels: list[str] = field(default_factory=list)
    axes: dict[str, list[str]] = field(default_factory=dict)
    part: Part
    parts: list[Part] = field(default_factory=list)
    anything: Any = None


class WrongError(ValueError):
    """The error of these tests."""


SMALL = "folder: there\nsteps: 2\npart: {name: a, is: b}\n"
WHOLE = Whole(folder="there", steps=2, part=Part("a", "b"))


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str = SMALL, *overrides: str) -> Whole:
        file = tmp_path / "file.yaml"
        file.write_text(text, encoding="utf-8")
        return read_yaml(file, Whole, WrongError, overrides)

    return read


def test_a_keyword_is_a_key_and_what_is_written_is_read_again(read) -> None:
    assert read() == WHOLE
    assert as_plain(WHOLE)["part"] == {"name": "a", "is": "b"}
    assert parse_json(json.dumps(as_plain(WHOLE)), Whole) == WHOLE


def test_text_is_what_was_typed_and_numbers_may_come_from_text(read, monkeypatch) -> None:
    monkeypatch.setenv("STEPS", "7")
    text = SMALL.replace("steps: 2", "steps: ${oc.env:STEPS}").replace("there", "2026.10")
    found = read(text, "labels=[on, 0.1, 1e-6]", "axes.no=[010]", "rate=3", "anything=on")
    assert (found.folder, found.steps, found.rate, found.anything) == ("2026.10", 7, 3.0, True)
    assert (found.labels, found.axes) == (["on", "0.1", "1e-6"], {"no": ["010"]})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("step=3", r"step=3 is not known; valid are folder, steps, rate, .*\. Remove the line$"),
        ("part.is_=c", r"part\.is_='c' is not known; valid are part\.name, part\.is\. "),
        ("part=3", r"part is '3'; valid is .*Part\. Type: part=\{…\}$"),
        ("parts=3", r"parts is '3'; valid is a valid list\. Type: parts=\[3\]$"),
        ("parts=[{is: x}]", r"parts\[0\]\.name is not given, and has no default\. Type: parts\[0\]\.name="),
        ("steps=on", r"steps is 'on'; valid is .* integer.*\. Type: steps=<value>$"),
        ("steps=2.5", r"steps is 2\.5; valid is .* integer"),
        ("labels=[]|labels.a.b=3", r"file\.yaml cannot be read: .*'a'"),
        ("labels=null", r"labels is None; valid is a valid list\. Type: labels=\[<value>\]$"),
        ("labels=[[]]", r"labels\[0\] is \[\]; valid is .*string\. Type: labels\[0\]=<value>$"),
        ('folder="a\\0"', r"'a\\x00' is a text with \\0"),
        ("folder=${folder}", r"refers to itself without end|folder: "),
        ("folder=${nowhere}", r"file\.yaml: folder: .*nowhere.* Type: folder=<value>$"),
    ],
)
def test_what_does_not_fit_is_named(read, override: str, message: str) -> None:
    with pytest.raises(WrongError, match=message):
        read(SMALL, *override.split("|"))


def test_a_few_aliases_that_make_many_values_are_refused(read) -> None:
    lists = [f"- &a{i} [{', '.join([f'*a{i - 1}'] * 10 if i else '0123456789')}]" for i in range(8)]
    with pytest.raises(WrongError, match=r"\*aliases make more than 100000 values of it\. Remove some$"):
        read("\n".join(["anything:", *lists]))


def test_what_is_not_there_is_named(read, tmp_path: Path) -> None:
    with pytest.raises(WrongError, match=r"nothing\.yaml cannot be read"):
        read_yaml(tmp_path / "nothing.yaml", Whole, WrongError)
    with pytest.raises(WrongError, match=r"file\.yaml cannot be read"):
        read("a: [")
    with pytest.raises(WrongError, match=r"part is not given, and has no default\. Type: part=\{…\}$"):
        read(SMALL.splitlines()[0] + "\nsteps: 2\n")
    with pytest.raises(WrongError, match=r"steps: Missing mandatory value.*\. Type: steps=<value>$"):
        read(SMALL.replace("steps: 2", "steps: ???"))


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"name": "\xff"}', b"3", b'{"name": 3}', b"{}"])
def test_damaged_json_has_one_reason(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
        parse_json(content, Part)


def test_json_is_taken_as_it_is() -> None:
    """A program wrote it: text is no number, and a dataclass without the base ignores more keys."""
    with pytest.raises(ValueError, match=r"steps is '2': "):
        parse_json(json.dumps(as_plain(WHOLE) | {"steps": "2"}), Whole)
    with pytest.raises(ValueError, match=r"step is 3: "):
        parse_json(json.dumps(as_plain(WHOLE) | {"step": 3}), Whole)
    assert parse_json(b'{"name": "a", "more": 1}', Part) == Part("a")


def test_a_line_is_named_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"name": "a\u2028b"}\n{')
    assert [*read_lines(file, Part, WrongError, what="parts", only_whole=True)] == [Part("a\u2028b")]
    lines = read_lines(file, Part, WrongError, what="parts")
    assert next(lines) == Part("a\u2028b")
    with pytest.raises(WrongError, match=rf"^{file}, line 2, is no record of parts \(.*\)\. It was left in"):
        next(lines)
