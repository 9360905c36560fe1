"""Strategies and numbers of examples for the fuzz tests.

Every run draws a few new examples; it prints at its start the option that draws them again.
FUZZ_TIMES=<number> multiplies them; FUZZ_EXAMPLES=<number> draws that many.
"""

import json
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

WANTED = os.environ.get("FUZZ_EXAMPLES")
TIMES = int(os.environ.get("FUZZ_TIMES", "1"))


def fuzzing(few: int) -> settings:
    """Settings of a test: ``few`` examples, unless more are wanted."""
    return settings(
        max_examples=int(WANTED or few * TIMES),
        derandomize=False,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


texts = st.text(max_size=20)
"""Any Unicode but halves of surrogate pairs."""
numbers = (
    st.integers(-3, 3)
    | st.integers()
    | st.sampled_from([10**30, -(10**30), 10**400, True, False])
    | st.floats()
    | st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e308])
)
scalars = st.none() | numbers | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
"""What JSON and YAML can say, NaN and infinities included."""


def mutated(valid: dict[str, object]) -> st.SearchStrategy[dict[str, object]]:
    """A valid record with some values replaced, some keys left out, and a few that nobody knows."""
    replaced = st.dictionaries(st.sampled_from(sorted(valid)), values, max_size=2)
    left_out = st.sets(st.sampled_from(sorted(valid)), max_size=1)
    unknown = st.dictionaries(texts, values, max_size=1)
    return st.builds(
        lambda new, out, more: {key: value for key, value in (valid | new | more).items() if key not in out},
        replaced,
        left_out,
        unknown,
    )


def json_files(valid: dict[str, object]) -> st.SearchStrategy[bytes]:
    """Of one JSON object: mutated, cut, with a byte changed, or nothing like it."""
    whole = mutated(valid).map(as_json)
    return (
        whole
        | st.builds(lambda text, at: text[: at % (len(text) + 1)], whole, st.integers(0, 10**4))
        | st.builds(changed_byte, whole, st.integers(0, 10**4), st.integers(0, 255))
        | values.map(as_json)
        | st.binary(max_size=30)
    )


DEEP = b"[" * 100_000
"""More brackets than Python's parser goes down."""


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def changed_byte(text: bytes, at: int, byte: int) -> bytes:
    place = at % max(len(text), 1)
    return text[:place] + bytes([byte]) + text[place + 1 :]
