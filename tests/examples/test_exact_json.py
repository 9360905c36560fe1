"""Test that JSON keeps what plain JSON loses."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym_reward import exact_text, from_exact_text
from strategies import fuzzing

text, marks = st.text(max_size=3), st.sampled_from(["__tuple__", "__pairs__", "__fraction__"])
keys = text | st.integers() | st.tuples(st.integers()) | marks
leaves = text | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.fractions()
few, by = partial(st.lists, max_size=3), partial(st.dictionaries, keys, max_size=3)
values = st.recursive(leaves, lambda of: few(of) | few(of).map(tuple) | by(of), max_leaves=8)


@fuzzing(30)
@given(values)
def test_it_comes_back_as_it_was(value: object) -> None:
    found = from_exact_text(exact_text(value))
    assert found == value
    assert repr(found) == repr(value)  # 1, 1.0 and True are equal


def test_numpys_numbers_and_texts_become_pythons_and_another_type_is_refused() -> None:
    assert exact_text({"a": np.float64(0.5), "b": (np.str_("x"),)}) == '{"a": 0.5, "b": {"__tuple__": ["x"]}}'
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        exact_text([{1}])
