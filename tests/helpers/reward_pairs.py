"""Preference pairs that a tiny reward model can learn."""

import random

from grpo_verl_ext.iterate.examples import Pair


def learnable_pairs(count: int, seed: int) -> list[Pair]:
    """A response that ends with ``!`` is better than one that ends with ``?``."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdef", k=4)) for _ in range(count)]
    return [Pair(f"user\n{index % 9}\n", f"{word}!", f"{word}?") for index, word in enumerate(words)]
