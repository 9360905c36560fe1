"""Problems, wanted responses and the line between training and test: plain Python, nothing drawn by luck."""

from __future__ import annotations

import hashlib
import random
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from grpo_verl_ext.tasks.chain_sum.prepared import DATA_SOURCE

Terms = tuple[int, ...]
Split = Literal["train", "test"]

TEST_SHARE = 64 / 256
"""Share of all problems that belong to the test side."""


def prompt(terms: Terms) -> str:
    """``(3, 4, 2)`` → ``3+4+2=?``."""
    return "+".join(map(str, terms)) + "=?"


def wanted_response(terms: Terms) -> str:
    """The right response: one addition a step, then the answer."""
    return response(terms, slip_share=0.0, rng=random.Random(0))


def response(terms: Terms, *, slip_share: float, rng: random.Random) -> str:
    """A response in which each addition is wrong with probability ``slip_share``.

    A wrong sum is carried on, so the additions after it can be right in themselves and every slip is an
    error of its own.
    """
    total, steps = terms[0], ""
    for term in terms[1:]:
        result = total + term
        if rng.random() < slip_share:
            result = _slip(result, rng)
        steps += f"{total}+{term}={result};"
        total = result
    return f"<reasoning>{steps}</reasoning><answer>{total}</answer>"


def split_of(terms: Terms) -> Split:
    """Which side a problem is on: by a hash of its text, hence the same for every seed and every run."""
    first_byte = hashlib.sha256(prompt(terms).encode()).digest()[0]
    return "test" if first_byte < 256 * TEST_SHARE else "train"


def every_problem(number_of_terms: int, split: Split) -> list[Terms]:
    """All problems of a length on one side, in lexicographic order."""
    return [terms for terms in product(range(10), repeat=number_of_terms) if split_of(terms) == split]


def draw_problems(split: Split, count: int, *, lengths: range, seed: int) -> list[Terms]:
    """``count`` different problems of one side, each length equally often (±1), in an order by ``seed``.

    Raises:
        ValueError: a length has fewer problems than its part of ``count``.
    """
    rng = random.Random(f"problems/{split}/{seed}")
    drawn: list[Terms] = []
    for position, number_of_terms in enumerate(lengths):
        wanted = count // len(lengths) + (position < count % len(lengths))
        there = every_problem(number_of_terms, split)
        if wanted > len(there):
            raise ValueError(
                f"{split}_problems={count} asks for {wanted} problems of {number_of_terms} terms, but only "
                f"{len(there)} are on the {split} side; ask for fewer or raise min_terms"
            )
        drawn += rng.sample(there, wanted)
    rng.shuffle(drawn)
    return drawn


SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "ability": pa.string(),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct({"index": pa.int64(), "split": pa.string(), "terms": pa.list_(pa.int64())}),
    }
)


def row(terms: Terms, *, split: Split, index: int) -> dict[str, Any]:
    """One problem as verl reads it; ``extra_info.terms`` is what grading the steps needs."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": prompt(terms)}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(sum(terms))},
        "extra_info": {"index": index, "split": split, "terms": list(terms)},
    }


def write_rows(path: Path, problems: list[Terms], split: Split) -> None:
    """Write the problems, in order, as one parquet file."""
    rows = [row(terms, split=split, index=index) for index, terms in enumerate(problems)]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a parquet file as dictionaries."""
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def _slip(result: int, rng: random.Random) -> int:
    """A wrong sum within 3 of the right one, never negative."""
    return rng.choice([wrong for wrong in range(result - 3, result + 4) if wrong >= 0 and wrong != result])
