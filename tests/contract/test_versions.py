"""Test that the page of verl's versions is the script's; the script itself needs the network."""

import verl
import versions

from grpo_verl_ext.utils.which_verl import TESTED, TESTED_LOSSES


def rows() -> dict[str, list[str]]:
    """Name → cells, of the page's table."""
    lines = [line for line in versions.PAGE.read_text().splitlines() if line.startswith("| ")]
    parts = ([part.strip() for part in line.strip("|").split("|")] for line in lines)
    return {name: cells for name, *cells in parts}


def test_the_page_is_what_the_script_writes() -> None:
    written = rows()
    heads = written.pop("")
    table = {head: {name: cells[i] for name, cells in written.items()} for i, head in enumerate(heads)}
    assert versions.page(table) == versions.PAGE.read_text()


def test_every_tested_version_has_a_column() -> None:
    assert set(versions.VERSIONS) >= {*TESTED, *TESTED_LOSSES}


def test_every_cell_of_the_tested_versions_was_run() -> None:
    assert set(rows()) == {"", *versions.CELLS}
    assert all(cell for cells in rows().values() for cell in cells[1:])


def test_the_page_has_what_the_checks_say_of_presets() -> None:
    """Of the verl that is here, or of a newer one as of the newest that the page has.

    The script, which is run by hand, ends at a check that asks for what only a user has, unless it knows it.
    """
    written = rows()
    cells = dict(zip(written[""], written["Presets that the checks pass"], strict=True))
    newest = cells[f"verl {versions.VERSIONS[-1]}"]
    assert versions.presets() == cells.get(f"verl {verl.__version__}", newest)
