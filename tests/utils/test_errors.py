"""Test the one form of a problem with a setting, from the exception to the terminal."""

import pickle

import pytest

from grpo_verl_ext.utils.errors import Line, Problem, SettingError, as_typed


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"valid": "an integer ≥ 1", "fix": "a.b=1"}, "a.b is 0; valid is an integer ≥ 1. Type: a.b=1"),
        ({"valid": ("x", "y"), "why": "c", "fix": "a.b=x"}, "a.b is 0, but c; valid are x, y. Type: a.b=x"),
        ({"why": "c", "fix": "~a.b"}, "a.b is 0, but c. Type: ~a.b"),
        ({"seen": "there is no a.b", "why": "c", "fix": "a.b=1"}, "there is no a.b, but c. Type: a.b=1"),
        ({"seen": "a message with its own line"}, "a message with its own line"),
    ],
)
def test_the_sentence(fields: dict[str, str], text: str) -> None:
    assert str(Problem("a.b", 0, **fields)) == text
    assert str(SettingError("a.b", 0, **fields)) == text


@pytest.mark.parametrize(("value", "text"), [
    (None, "null"), (True, "true"), (0.1, "0.1"), ("/a/b c", "/a/b c"), (["a"], "['a']"),
    ("0.1", "'0.1'"), ("true", "'true'"), ("", "''"), ("{", "'{'"),
])  # fmt: skip
def test_a_value_is_shown_as_one_types_it(value: object, text: str) -> None:
    assert as_typed(value) == text


def test_it_crosses_processes_whole() -> None:
    line = Line("a=[1,2]", "b=${c}", more=", or d=1")
    error = SettingError("a.b", 0, why="c", valid=("x", "y"), fix=line)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.problem) == (SettingError, str(error), error.problem)
    assert again.problem.fix == "'a=[1,2]' 'b=${c}', or d=1"
    assert again.problem.fix.words == ("a=[1,2]", "b=${c}")
