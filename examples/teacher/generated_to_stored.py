"""Make training data with stored responses from the file of verl's generation server.

python examples/teacher/generated_to_stored.py GENERATED FILE
"""

import sys

import pandas


def main(generated: str, file: str) -> None:
    rows = pandas.read_parquet(generated)
    responses = rows.pop("responses")
    infos = rows["extra_info"] if "extra_info" in rows else [{}] * len(rows)
    rows["extra_info"] = [
        {**(info or {}), "responses": list(texts)} for info, texts in zip(infos, responses, strict=True)
    ]
    rows.to_parquet(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
