"""Turn this package's docstrings, which are plain text, into the reStructuredText that autodoc expects."""

import re
from typing import Any

from sphinx.application import Sphinx

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Note):$")
OUTSIDE_LITERALS = re.compile(r"``.*?``|(?P<bar>\|)")


def prepare(_app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Rewrite the lines of a docstring in place, before napoleon sees them."""
    found: list[str] = []
    above, in_formula = "", False
    for line in lines:
        if line.startswith("    "):
            begins = found[-1:] == [""] and bool(above) and not SECTION.match(above)
            if begins and not in_formula and not above.endswith("::"):
                found += ["::", ""]
            in_formula = in_formula or begins
        elif line:
            above, in_formula = line, False
        found.append(line if in_formula else _escaped(line))
    if what in ("attribute", "data"):
        # napoleon takes what stands before the first colon for a type
        found[0] = f": {found[0]}"
    lines[:] = found


def _escaped(line: str) -> str:
    """The line without the bars that begin a substitution."""
    return OUTSIDE_LITERALS.sub(lambda found: r"\|" if found["bar"] else found[0], line)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", prepare, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
