"""Test the reward that asks math-verify 0.9.0, in a thread as verl does, beside the rules."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import math_verify_reward
import pytest
from verl.utils.reward_score import default_compute_score

from grpo_verl_ext.rewards.rules import correctness

TAGS, GSM8K, MATH = "gsm8k_tags", "openai/gsm8k", "DigitalLearningGmbH/MATH-lighteval"
# ground truth, response, whether it is right to math-verify, and to the rule of the data
READ = [
    (GSM8K, "1585", "$\\boxed{3}$ each.\n#### $1,585.00", True, False),
    (MATH, "\\frac{3}{4}", "First $\\boxed{3}$, and then $\\boxed{0.75}$.", True, False),
    # percent: either reading; in a box the antlr of verl's hydra, 4.9, does not parse it
    (TAGS, "0.72", "<answer>72%</answer>", True, False),
    (MATH, "50\\%", "\\boxed{50}", False, True),
    # boxes with a comma between them: one set, or one number
    (MATH, "2", "\\boxed{1},\\boxed{2}", False, True),
    (MATH, "1,2", "\\boxed{2},\\boxed{1}", True, False),
    (MATH, "1585", "\\boxed{1},\\boxed{585}", True, False),
    # a letter: a variable in a box, of either case, and nothing elsewhere
    (MATH, "B", "\\boxed{b}", True, False),
    (TAGS, "B", "<answer>B</answer>", False, True),
    # 1e5: 1, and in a box 1 · e · 5
    (TAGS, "100000", "<answer>1e5</answer>", False, True),
    (TAGS, "1", "<answer>1e5</answer>", True, False),
]


@pytest.mark.parametrize("case", READ, ids=str)
def test_it_reads_some_answers_otherwise_than_the_rule(case: tuple[str, str, str, bool, bool]) -> None:
    data, truth, text, right, by_rule = case
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(math_verify_reward.compute_score, data, text, truth).result()
    assert found == {"score": float(right), "acc": float(right), "not_compared": 0.0}
    score = correctness(text, truth) if data == TAGS else default_compute_score(data, text, truth)
    assert (score > 0) == by_rule


def test_what_takes_too_long_is_ended_and_the_next_is_compared() -> None:
    compare = math_verify_reward.Comparison()
    assert compare.ask("72", "72") is True
    os.kill(compare._process.pid, signal.SIGSTOP)
    assert compare.ask("72", "72", patience=0.1) is None
    assert compare.ask("72", "72") is True
