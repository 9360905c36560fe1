"""Score an answer in ``\\boxed{}`` by verl's rule for MATH, in training and on the benchmarks."""

import json
from typing import Any

from verl.utils.reward_score import math_reward

TRAINING = "DigitalLearningGmbH/MATH-lighteval"
"""``data_source`` of verl's examples/data_preprocess/math_dataset.py; benchmarks have lists of answers."""


def compute_score(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    """Return 1 if the last boxed answer is one of those accepted, else 0."""
    accepted = [ground_truth] if data_source == TRAINING else json.loads(ground_truth)
    return max(float(math_reward.compute_score(solution_str, answer)) for answer in accepted)
