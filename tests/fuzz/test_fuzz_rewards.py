"""Fuzz rewards with any response and data: a score, or an error about the settings or the data.

Other arguments are fuzzed here; any text against any ground truth in tests/rewards.
"""

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import fuzzing, texts, values

from grpo_verl_ext.rewards.steps import KEYS, StepRewardError, step_end_tokens
from grpo_verl_ext.rewards.weighted_sum import REWARDS, compute_score

responses = st.text() | st.text("<answer>/reasoning0123456789+=;,.eE٣⁴", max_size=60).map(
    lambda inner: f"<reasoning>{inner}<answer>{inner}</answer>"
)
lone_halves = st.text(st.characters(codec=None), max_size=10)
terms = (
    values
    | st.lists(st.integers(), max_size=4)
    | st.lists(st.integers(0, 9), min_size=1, max_size=4).map(np.array)
    | st.lists(st.floats(), max_size=2).map(np.array)
)
extra_infos = (
    st.none()
    | st.dictionaries(texts, values, max_size=2)
    | terms.map(lambda found: {"terms": found, "index": 0})
)
weights = (
    st.just({"steps": 1.0, "correctness": 1})
    | st.dictionaries(st.sampled_from([*REWARDS, "corectness"]), values, max_size=3)
    | values
)
OF_SETTINGS, OF_DATA = "reward.custom_reward_function.reward_kwargs", "needs extra_info.terms in the data"


@fuzzing(150)
@given(
    solution_str=responses | lone_halves,
    ground_truth=texts | st.integers(-(10**9), 10**9) | st.floats() | st.none() | st.lists(texts, max_size=2),
    extra_info=extra_infos,
    weights=weights,
    step_rewards=st.booleans(),
    more=st.dictionaries(st.sampled_from(["weight", "reward_router_address"]), values, max_size=1),
)
@example("", "1", {"terms": []}, {"steps": 1.0}, True, {})
@example("", "1", {"terms": None}, {"steps": 1.0}, False, {})
@example("", "1", {"terms": [None]}, {"steps": 1.0}, False, {})
@example("", "1", {"terms": [1]}, {"format": 10**400}, False, {})
@example("<answer>1</answer>", "1", None, {"correctness": 1e308}, False, {})
def test_a_score_or_a_word_about_settings_or_data(
    solution_str: str, ground_truth: object, extra_info, weights, step_rewards: bool, more
) -> None:
    try:
        result = compute_score(
            "any", solution_str, ground_truth, extra_info, weights=weights, step_rewards=step_rewards, **more
        )
    except ValueError as error:
        assert OF_SETTINGS in str(error) or OF_DATA in str(error)
    else:
        assert result["acc"] in (0.0, 1.0)
        assert math.isfinite(result["score"])
        ends = result.get("step_ends", [])
        assert len(ends) == len(result.get("step_rewards", []))
        assert all(1 <= end <= len(solution_str) for end in ends)


reported = st.dictionaries(
    st.sampled_from(KEYS), values | st.lists(st.integers(-1, 5) | st.floats(), max_size=3), max_size=3
)


@fuzzing(150)
@given(reported=reported, tokens=st.lists(st.integers(0, 25), max_size=4))
@example({"step_rewards": ["1"], "step_ends": [1]}, [3])
@example({"step_rewards": 1.0, "step_ends": [1]}, [3])
@example({"step_rewards": [10**400], "step_ends": [1]}, [3])
@example({"step_rewards": [1.0], "step_ends": [1.0]}, [3])
@example({"step_rewards": [1.0], "step_ends": [None]}, [3])
def test_steps_of_a_reward_function_are_put_on_tokens_or_refused(reported, tokens: list[int]) -> None:
    def decode(ids) -> str:
        return "".join(chr(ord("a") + number) for number in ids)

    try:
        ends = step_end_tokens(reported, tokens, decode)
    except StepRewardError as error:
        assert "step_" in str(error)
    else:
        assert len(ends) == len(reported["step_rewards"])
        assert all(type(end) is int and 0 <= end < len(tokens) for end in ends)
