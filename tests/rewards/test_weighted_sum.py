"""Test the weighted reward that verl calls: closed forms and refusals."""

import math
import re

import pytest

from grpo_verl_ext.rewards.weighted_sum import check_weights, compute_score

RIGHT = "<reasoning>3+4=7;7+2=9;</reasoning><answer>9</answer>"
TERMS = {"terms": [3, 4, 2]}


def test_a_right_response_earns_two_and_four_fifths():
    assert compute_score("chain_sum", RIGHT, "9") == {
        "score": pytest.approx(2.8, abs=1e-15),
        "acc": 1.0,
        "correctness": 2.0,
        "format": pytest.approx(0.8, abs=1e-15),
    }


def test_weights_multiply_and_the_parts_are_reported_without_them():
    result = compute_score(
        "chain_sum", RIGHT, "9", TERMS, weights={"correctness": 0.5, "format": -2.0, "steps": 3}
    )
    # 0.5·2.0 − 2·0.8 + 3·1.0
    assert result["score"] == pytest.approx(2.4, abs=1e-15)
    assert (result["correctness"], result["steps"]) == (2.0, 1.0)
    assert compute_score("chain_sum", RIGHT, "9", weights={"format": 1.0})["acc"] == 1.0


@pytest.mark.parametrize("weight", ["1.0", None, True, math.nan, math.inf])
def test_a_weight_that_is_no_finite_number_is_refused(weight):
    with pytest.raises(ValueError, match=re.escape(f"weights.format={weight!r} is not a finite number")):
        check_weights({"format": weight})


@pytest.mark.parametrize("weights", [{}, None, ["format"], "format", {"corectness": 1.0}])
def test_weights_that_name_no_reward_are_refused_with_the_valid_ones_and_the_line_to_type(weights):
    with pytest.raises(
        ValueError, match=r"valid names are \['correctness', 'format'.*type '\+reward.*weights="
    ):
        compute_score("chain_sum", RIGHT, "9", weights=weights)


@pytest.mark.parametrize("asked", [{"weights": {"steps": 1.0}}, {"step_rewards": True}])
def test_steps_without_terms_in_the_data_are_refused(asked):
    with pytest.raises(ValueError, match=r"needs extra_info.terms in the data; a row has only \['index'\]"):
        compute_score("gsm8k", RIGHT, "9", {"index": 3}, **asked)


def test_a_misspelt_setting_is_refused_and_verls_own_extras_are_not():
    with pytest.raises(ValueError, match=r"reward_kwargs\.weigths is not known; valid keys are 'weights'"):
        compute_score("chain_sum", RIGHT, "9", weigths={"format": 1.0})
    extras = {"reward_router_address": "localhost:1", "reward_model_tokenizer": object()}
    assert compute_score("chain_sum", RIGHT, "9", **extras)["acc"] == 1.0


@pytest.mark.parametrize(
    ("text", "gold"),
    [(RIGHT, 1.0), (f"{RIGHT}\n", 0.0), (RIGHT.replace("3+4=7;", ""), 0.0), ("", 0.0)],
    ids=["the wanted one", "a line break more", "right by another chain", "empty"],
)
def test_whether_it_is_the_wanted_response_is_said_where_that_is_given(text, gold):
    plain = compute_score("chain_sum", text, "9", TERMS | {"response": ["no text"]})
    assert compute_score("chain_sum", text, "9", TERMS | {"response": RIGHT}) == plain | {"gold": gold}


def test_the_wanted_response_of_the_embedded_task_survives_verls_decoding():
    """verl scores the text of the tokens, end of turn included, decoded without special tokens."""
    from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer
    from grpo_verl_ext.tasks.chain_sum.problems import rows

    tokenizer, extra_info = build_tokenizer(), rows([(3, 4, 2)], "test")[0]["extra_info"]
    ids = [*tokenizer.encode(extra_info["response"]), tokenizer.eos_token_id]
    found = compute_score("chain_sum", tokenizer.decode(ids, skip_special_tokens=True), "9", extra_info)
    assert (found["gold"], found["acc"]) == (1.0, 1.0)


def test_step_rewards_come_beside_the_outcome_when_asked_for():
    terms = {"terms": [3, 4, 2]}
    plain = compute_score("chain_sum", RIGHT, "9", terms)
    found = compute_score("chain_sum", RIGHT, "9", terms, step_rewards=True)
    assert {key: found[key] for key in plain} == plain
    assert found.keys() - plain.keys() == {"steps", "step_rewards", "step_ends"}
    assert found["steps"] == 1.0
    assert (found["step_rewards"], found["step_ends"]) == ([1.0, 1.0, 1.0], [17, 23, len(RIGHT)])
