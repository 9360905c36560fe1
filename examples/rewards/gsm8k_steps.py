"""Reward function for preset `grpo_process` on GSM8K: each written equation is a step, right if it holds.

    reward.custom_reward_function.path=examples/rewards/gsm8k_steps.py

The rule checks that ``3 * 4 = 12`` holds, not that the problem asks for it. The answer is the last step.
"""

import re
from decimal import Decimal, DecimalException

from verl.utils.reward_score import gsm8k

NUMBER = r"\$?(-?[0-9][0-9,]{0,15}(?:\.[0-9]{1,6})?)"
EQUATION = re.compile(rf"{NUMBER}\s*([-+*/×÷x])\s*{NUMBER}\s*=\s*{NUMBER}")
OPERATIONS = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
}
OTHER_SIGNS = {"×": "*", "x": "*", "÷": "/"}


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """Return verl's score of the answer, and a reward for each equation and for the answer."""
    score = float(gsm8k.compute_score(solution_str, ground_truth))
    found = list(EQUATION.finditer(solution_str))
    steps = [(float(holds(*equation.groups())), equation.end()) for equation in found]
    if solution_str:
        steps.append((score, len(solution_str)))
    return {
        "score": score,
        "acc": score,
        "step_rewards": [reward for reward, _ in steps],
        "step_ends": [end for _, end in steps],
    }


def holds(left: str, sign: str, right: str, result: str) -> bool:
    """Whether the equation is right, to the digits that are written."""
    first, second, third = (Decimal(number.replace(",", "")) for number in (left, right, result))
    try:
        value = OPERATIONS[OTHER_SIGNS.get(sign, sign)](first, second)
    except DecimalException:
        return False
    return abs(value - third) <= Decimal(1).scaleb(third.as_tuple().exponent) / 2
