"""Test the page of papers: written from the records, and a row for each paper."""

import re

from write_paper_index import PAGE, number_of, page

from grpo_verl_ext.catalogue import ALGORITHMS, PRESETS


def test_the_page_is_what_the_records_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "type: python tests/helpers/write_paper_index.py"


def test_every_paper_has_one_row_and_every_preset_is_in_one() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| ")]
    numbers = re.findall(r"\[(\d{4}\.\d{5})\]", "\n".join(rows))
    assert sorted(numbers) == sorted({number_of(each) for each in ALGORITHMS.values()} - {""})
    presets = re.findall(r"\[`(\w+)`\]\(algorithms/\1\.md\)", "\n".join(rows))
    assert sorted(presets) == sorted(PRESETS)
