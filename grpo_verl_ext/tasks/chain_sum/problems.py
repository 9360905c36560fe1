"""Problems, right and wrong responses, the split into training and test, and the rows in verl's format.

The same seed always gives the same problems.
"""

import hashlib
import random
from collections.abc import Sequence
from itertools import combinations_with_replacement, product
from typing import Any

from grpo_verl_ext.tasks.folders import verl_row

_Terms = tuple[int, ...]


def prompt(terms: _Terms) -> str:
    """Return the text of a problem: ``(3, 4, 2)`` → ``3+4+2=?``."""
    return "+".join(map(str, terms)) + "=?"


def response(
    terms: _Terms, *, slip_share: float = 0.0, rewrite_share: float = 0.0, rng: random.Random | None = None
) -> str:
    """Return a response, one addition a step; each is wrong (a slip) with probability ``slip_share``.

    The next addition continues from the wrong sum, so it can be right in itself: each slip is one error. With
    probability ``rewrite_share`` all steps are written once more, and then again with the same probability.
    """
    rng, total, steps = rng or random.Random(0), terms[0], ""
    for term in terms[1:]:
        result = total + term
        if rng.random() < slip_share:
            near = range(max(0, result - 3), result + 4)
            result = rng.choice([wrong for wrong in near if wrong != result])
        steps += f"{total}+{term}={result};"
        total = result
    written = steps
    while rewrite_share and rng.random() < rewrite_share:
        written += steps
    return f"<reasoning>{written}</reasoning><answer>{total}</answer>"


def every_problem(number_of_terms: int, split: str, *, by_set: bool = False) -> list[_Terms]:
    """Return all problems of a length in one split, in lexicographic order.

    The split is decided by a hash of the text, and so the same for every seed and run. With ``by_set`` it is
    that of the sorted terms, so that all orders of them are on one side.
    """
    every = product(range(10), repeat=number_of_terms)
    hashed = combinations_with_replacement(range(10), number_of_terms) if by_set else every
    # a quarter of them
    test = {terms for terms in hashed if hashlib.sha256(prompt(terms).encode()).digest()[0] < 64}
    return [
        terms
        for terms in product(range(10), repeat=number_of_terms)
        if ((tuple(sorted(terms)) if by_set else terms) in test) == (split == "test")
    ]


def draw_problems(split: str, count: int, *, lengths: range, seed: int, by_set: bool = False) -> list[_Terms]:
    """Draw ``count`` different problems of one split in a seeded order, each length equally often (±1).

    A length with fewer problems gives all of them, and the longer ones share the rest; all lengths together
    with fewer raise ValueError.
    """
    rng = random.Random(f"problems/{split}/{seed}")
    drawn: list[_Terms] = []
    for position, number_of_terms in enumerate(lengths):
        left, longer = count - len(drawn), len(lengths) - position
        there = every_problem(number_of_terms, split, by_set=by_set)
        drawn += rng.sample(there, min(-(-left // longer), len(there)))
    if len(drawn) < count:
        seen = f"{len(drawn)} problems of {lengths[0]} to {lengths[-1]} terms are on the {split} side"
        raise ValueError(f"{split}_problems={count}, but only {seen}; ask for fewer or raise max_terms")
    rng.shuffle(drawn)
    return drawn


def rows(problems: Sequence[_Terms], split: str, task: str = "chain_sum") -> list[dict[str, Any]]:
    """Return the problems as verl reads them; grading the steps needs ``extra_info.terms``."""
    made = []
    for index, terms in enumerate(problems):
        of_row = {"index": index, "split": split, "terms": list(terms), "response": response(terms)}
        truth = str(sum(terms))
        made.append(verl_row(task, prompt(terms), truth, system="", ability="math", extra_info=of_row))
    return made
