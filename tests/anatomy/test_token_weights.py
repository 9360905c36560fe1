"""Test the weight of a token under each variant: by hand, as properties, and against the plugin's losses.

Not covered: later updates on the same rollout, where ratios differ from 1.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_verl_ext.anatomy.weights import (
    COMPARED_ALGORITHMS,
    StepResponses,
    micro_batches,
    relative,
    token_weights,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=40)

SCORES = [0.0, 1.0, 2.0, 0.0, 0.0, 2.0, 4.0, 4.0]
LENGTHS = [4, 1, 2, 1, 2, 1, 2, 3]
GROUPS = ["a", "a", "a", "b", "b", "b", "b", "b"]
"""Group a: centred (−1, 0, 1), std 1. Group b: centred (−2, −2, 0, 2, 2), std √(16/4) = 2. B = 8, N = 16."""

BY_HAND = {
    # A/|o|: −¼ 0 ½ | −1 −½ 0 ½ ⅓. Σ|w||o| = Σ|A| = 6, so times 16/6.
    "grpo": [-2 / 3, 0, 4 / 3, -8 / 3, -4 / 3, 0, 4 / 3, 8 / 9],
    # A itself. Σ|A||o| = (4 + 2) + (1 + 2 + 2 + 3) = 14.
    "dapo": [-8 / 7, 0, 8 / 7, -8 / 7, -8 / 7, 0, 8 / 7, 8 / 7],
    # A/7 and A/9. Σ = 6/7 + 8/9 = 110/63, so 16 · 63/110 times 1/7 or 1/9.
    "dapo_per_prompt": [-72 / 55, 0, 72 / 55, -56 / 55, -56 / 55, 0, 56 / 55, 56 / 55],
    # r − mean r: ∓1 and ∓2. Σ = 6 + 2 · 8 = 22.
    "dr_grpo": [-8 / 11, 0, 8 / 11, -16 / 11, -16 / 11, 0, 16 / 11, 16 / 11],
    # (r − mean r)/(k − 1): ∓1/2 and ∓2/4. Σ = 7.
    "gvpo": [-8 / 7, 0, 8 / 7, -8 / 7, -8 / 7, 0, 8 / 7, 8 / 7],
}

# At a ratio of 1 neither a response's ratio nor a gate or a capped weight differs from a token's plain one.
BY_HAND |= {
    **dict.fromkeys(["gspo", "gmpo", "sapo"], BY_HAND["grpo"]),
    # luspo: GSPO's without 1/|o|. maxrl: the groups' means, 1 and 2, are their standard deviations, too.
    **dict.fromkeys(["cispo", "vespo", "luspo", "maxrl"], BY_HAND["dapo"]),
    **dict.fromkeys(["dppo", "dppo_kl", "topr", "kimi"], BY_HAND["dr_grpo"]),
    # dr_grpo's ∓1 and ∓2 over one std of all rewards, which cancels.
    "lite_ppo": BY_HAND["dr_grpo"],
    # k/(k − 1) (r − mean r): ∓3/2 and ∓5/2. Σ = 6 · 3/2 + 8 · 5/2 = 29.
    "rloo": [-24 / 29, 0, 24 / 29, -40 / 29, -40 / 29, 0, 40 / 29, 40 / 29],
}

CUT_DOES_NOT_MATTER = [name for name in COMPARED_ALGORITHMS if name != "bnpo"]


def weights_of(name: str, step: StepResponses, micro_batch_size: int = 3) -> Tensor:
    return token_weights(name, step, micro_batch_size)


def relative_of(name: str, step: StepResponses, micro_batch_size: int = 3) -> Tensor:
    return relative(weights_of(name, step, micro_batch_size), step.lengths)


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("micro_batch_size", [1, 3, 8])
def test_by_hand(name: str, micro_batch_size: int) -> None:
    found = relative_of(name, StepResponses.of(SCORES, LENGTHS, GROUPS), micro_batch_size)
    # The ε of the standard deviation is 1e-6.
    assert found.tolist() == pytest.approx(BY_HAND[name], abs=1e-5)


def test_bnpo_goes_from_grpo_to_dapo_with_its_local_batch() -> None:
    step = StepResponses.of(SCORES, LENGTHS, GROUPS)
    assert relative_of("bnpo", step, 1).tolist() == pytest.approx(BY_HAND["grpo"], abs=1e-5)
    assert relative_of("bnpo", step, 8).tolist() == pytest.approx(BY_HAND["dapo"], abs=1e-5)


def test_bnpo_divides_by_the_tokens_of_the_local_batch() -> None:
    step = StepResponses.of(SCORES, LENGTHS, GROUPS)
    advantages = [-1, 0, 1, -1, -1, 0, 1, 1]
    wanted = [0.0] * 8
    for rows in micro_batches(8, 3):
        tokens = sum(LENGTHS[row] for row in rows)
        for row in rows.tolist():
            # The mean over the local batch, b/B of the step.
            wanted[row] = advantages[row] / tokens * len(rows) / 8
    assert weights_of("bnpo", step, 3).tolist() == pytest.approx(wanted, abs=1e-6)


def test_absolute_weights_of_grpo_and_dapo_by_hand() -> None:
    """Before `relative`: 1/(B|o|) and 1/N times A."""
    step = StepResponses.of(SCORES, LENGTHS, GROUPS)
    advantages = torch.tensor([-1.0, 0, 1, -1, -1, 0, 1, 1])
    torch.testing.assert_close(weights_of("grpo", step), advantages / 8 / step.lengths, rtol=0, atol=1e-6)
    torch.testing.assert_close(weights_of("dapo", step), advantages / 16, rtol=0, atol=1e-6)


RESPONSES = st.lists(
    st.tuples(st.integers(0, 3).map(float), st.integers(1, 6), st.sampled_from("abc")),
    min_size=2,
    max_size=10,
)


def step_of(responses: list[tuple[float, int, str]]) -> StepResponses:
    scores, lengths, groups = zip(*responses, strict=True)
    return StepResponses.of(scores, lengths, groups)


@pytest.mark.parametrize("name", COMPARED_ALGORITHMS)
@given(responses=RESPONSES)
@repeatable
def test_shares_add_up_to_one_or_there_is_no_gradient(name: str, responses) -> None:
    step = step_of(responses)
    shares = relative_of(name, step).abs() * step.lengths / step.tokens
    assert shares.sum().item() == pytest.approx(0 if step.has_no_signal().all() else 1, abs=1e-5)


@pytest.mark.parametrize("name", COMPARED_ALGORITHMS)
@given(responses=RESPONSES)
@repeatable
def test_a_group_with_equal_scores_weighs_exactly_nothing(name: str, responses) -> None:
    step = step_of([*responses, (1.0, 2, "z"), (1.0, 5, "z")])
    weights = weights_of(name, step)
    assert weights[-2:].tolist() == [0, 0]
    by_group = {
        group: {score for score, _, other in responses if other == group} for _, _, group in responses
    }
    wanted = [len(by_group[group]) == 1 for _, _, group in responses]
    assert step.has_no_signal().tolist() == [*wanted, True, True]
    assert (weights[:-2][torch.tensor(wanted)] == 0).all()


@pytest.mark.parametrize("name", CUT_DOES_NOT_MATTER)
@given(responses=RESPONSES, data=st.data())
@repeatable
def test_rows_in_another_order_have_the_same_weights(name: str, responses, data) -> None:
    order = data.draw(st.permutations(range(len(responses))))
    shuffled = weights_of(name, step_of([responses[row] for row in order]))
    wanted = weights_of(name, step_of(responses))[list(order)]
    torch.testing.assert_close(shuffled, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["bnpo", "dapo", "dapo_per_prompt", "dr_grpo", "gvpo"])
@given(first=st.integers(1, 9), second=st.integers(1, 9), rest=RESPONSES)
@repeatable
def test_in_a_group_the_weight_does_not_depend_on_the_own_length(name, first, second, rest) -> None:
    step = step_of([(2.0, first, "z"), (2.0, second, "z"), (0.0, 1, "z"), *rest])
    weights = weights_of(name, step, micro_batch_size=step.size)
    assert weights[0] > 0
    assert weights[1].item() == pytest.approx(weights[0].item(), rel=1e-5)


@given(first=st.integers(1, 9), second=st.integers(1, 9), rest=RESPONSES)
@repeatable
def test_that_of_grpo_is_as_one_over_the_length(first, second, rest) -> None:
    weights = weights_of("grpo", step_of([(2.0, first, "z"), (2.0, second, "z"), (0.0, 1, "z"), *rest]))
    assert weights[0] > 0
    assert (weights[1] * second).item() == pytest.approx((weights[0] * first).item(), rel=1e-5)


@pytest.mark.parametrize("name", ["dr_grpo", "gvpo"])
@given(responses=RESPONSES, length=st.integers(1, 9))
@repeatable
def test_nor_does_anyones_on_the_lengths_of_others(name: str, responses, length: int) -> None:
    (score, _, group), *others = responses
    before, after = (
        weights_of(name, step_of(responses)),
        weights_of(name, step_of([(score, length, group), *others])),
    )
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-7)
