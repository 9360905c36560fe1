"""A data file as verl's loader reads it."""

from pathlib import Path

import pandas

COUNT = 2048  # of prompts: a step of verl's default takes 1,024


def write_prompts(file: Path, count: int = COUNT, **changes: object) -> None:
    """Write one prompt many times, with changed columns; a column that is None is left out."""
    message = [{"role": "user", "content": "1+1=?"}]
    row = {"prompt": message, "data_source": "sums", "reward_model": {"ground_truth": "2"}} | changes
    columns = {name: [value] * count for name, value in row.items() if value is not None}
    pandas.DataFrame(columns).to_parquet(file)
