"""The rows of a problem in verl's format, and the parquet files that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grpo_verl_ext.tasks.chain_sum.problems import Split, Terms, prompt
from grpo_verl_ext.tasks.chain_sum.settings import DATA_SOURCE

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


def write(path: Path, problems: list[Terms], split: Split) -> None:
    """Write the problems, in order, as one parquet file."""
    rows = [row(terms, split=split, index=index) for index, terms in enumerate(problems)]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a parquet file as dictionaries."""
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows
