"""Write the five benchmarks of GVPO's Table 1 as one file that verl validates on.

    python3 prepare_benchmarks.py SUITE FILE

SUITE is ``datasets/evaluation_suite`` in a clone of https://github.com/sail-sg/understand-r1-zero. It has as
many problems as the table's percentages have: 83 of AMC, 500 of MATH, 272 of Minerva, 675 of OlympiadBench.
AIME's 30 are written 32 times, so that verl's mean over rows is the table's mean over 32 samples.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets

# verl's examples/data_preprocess/math_dataset.py
INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
REPEATS = {"aime": 32, "amc": 1, "math": 1, "minerva": 1, "olympiad_bench": 1}
DOLLAR = re.compile(r"(?<!\\)\$")
"""Of LaTeX's formulas; ``\\$`` is money."""
NAMES = {
    "aime": "aime24",
    "amc": "amc",
    "math": "math500",
    "minerva": "minerva",
    "olympiad_bench": "olympiad",
}


def answers(written: str | float | list[str]) -> list[str]:
    """Return the accepted answers as text, without dollars, leading zeros (AIME) and ``.0`` (AMC)."""
    if isinstance(written, float):
        return [f"{written:g}"]
    several = [written] if isinstance(written, str) else written
    bare = [DOLLAR.sub("", each).strip() for each in several]
    return [str(int(each)) if each.isdecimal() else each for each in bare]


def rows(suite: Any) -> Iterator[dict[str, Any]]:
    """Yield verl's columns for each problem; ``ground_truth`` is a JSON list of the accepted answers."""
    for name, repeats in REPEATS.items():
        for index, problem in enumerate(suite[name]):
            row = {
                "data_source": NAMES[name],
                "prompt": [{"role": "user", "content": f"{problem['problem']} {INSTRUCTION}"}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": json.dumps(answers(problem["answer"]))},
                "extra_info": {"split": "test", "index": index},
            }
            yield from [row] * repeats


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description="Write the benchmarks of GVPO's Table 1 for verl.")
    parser.add_argument("suite", type=Path, help="datasets/evaluation_suite of a clone of understand-r1-zero")
    parser.add_argument("file", type=Path, help="the Parquet file to write")
    given = parser.parse_args()
    if not (given.suite / "dataset_dict.json").is_file():
        parser.error(
            f"SUITE is {given.suite}, which has no dataset_dict.json; valid is datasets/evaluation_suite of "
            "https://github.com/sail-sg/understand-r1-zero. Type: git clone --depth 1 "
            "https://github.com/sail-sg/understand-r1-zero"
        )
    given.file.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(list(rows(datasets.load_from_disk(str(given.suite))))).to_parquet(given.file)


if __name__ == "__main__":
    main()
