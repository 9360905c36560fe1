"""Rows of training and test data as verl reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SYSTEM_PROMPT = """Respond in the following format:
<reasoning>
...
</reasoning>
<answer>
...
</answer>"""
"""Asks for the tags that `rewards.rules` looks for."""


def verl_row(
    data_source: str,
    question: str,
    ground_truth: str,
    *,
    system: str,
    ability: str,
    extra_info: Mapping[str, Any],
) -> dict[str, Any]:
    """Return one row; an empty ``system`` leaves the system prompt out.

    Args:
        extra_info: values of the same types in every row, for the columns of a parquet file.
    """
    instruction = [{"role": "system", "content": system}] if system else []
    return {
        "data_source": data_source,
        "prompt": [*instruction, {"role": "user", "content": question}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": dict(extra_info),
    }


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows, in order, as one parquet file; the same rows give the same bytes."""
    pq.write_table(pa.Table.from_pylist([*rows]), path)
