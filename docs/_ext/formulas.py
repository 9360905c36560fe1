"""Typeset formulas while the site is built.

KaTeX turns them into MathML, which browsers show without a script. A formula that KaTeX does not
understand is a warning, and so fails the build.
"""

import re
import unicodedata
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import sphinxcontrib.katex
from docutils import nodes
from py_mini_racer import JSEvalException, MiniRacer
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

STYLED = re.compile(r'<(?P<tag>m\w+) mathvariant="(?P<style>[\w-]+)">(?P<text>[^<]*)<')
APPLIED = re.compile(r"(<mo>\u2061</mo>)(?!(?:<mrow>)?<mo[^>]*>[(\[{])")
THIN_SPACE = r'\1<mspace width="0.1667em"></mspace>'
STYLES = {
    "bold": "BOLD",
    "bold-italic": "BOLD ITALIC",
    "double-struck": "DOUBLE-STRUCK",
    "fraktur": "FRAKTUR",
    "monospace": "MONOSPACE",
    "sans-serif": "SANS-SERIF",
    "script": "SCRIPT",
}


@cache
def katex() -> MiniRacer:
    """A JavaScript engine that has loaded KaTeX."""
    engine = MiniRacer()
    engine.eval(Path(sphinxcontrib.katex.__file__).with_name("katex.min.js").read_text(encoding="utf-8"))
    return engine


def mathml(node: nodes.math | nodes.math_block, *, display: bool) -> str:
    """MathML of a formula; GitHub's inline form has backticks inside the dollar signs."""
    latex = node.astext().strip().strip("`")
    options = {"output": "mathml", "displayMode": display, "strict": False}
    try:
        made: str = katex().call("katex.renderToString", latex, options)
    except JSEvalException as error:
        said = re.search(r"KaTeX parse error: .*", str(error))
        logger.warning("%s in the formula %s", said[0] if said else error, latex, location=node)
        return f"<code>{escape(latex)}</code>"
    # TeX's space in log π, which browsers leave out
    return STYLED.sub(in_unicode, APPLIED.sub(THIN_SPACE, made))


def in_unicode(element: re.Match[str]) -> str:
    """The letters themselves in the style: browsers ignore the attribute."""
    if element["style"] not in STYLES:
        return element[0]
    text = "".join(styled(letter, STYLES[element["style"]]) for letter in element["text"])
    return f"<{element['tag']}>{text}<"


def styled(letter: str, style: str) -> str:
    """The mathematical letter or digit of that style; the letter itself where Unicode has none."""
    if not (letter.isascii() and letter.isalnum()):
        return letter
    what = unicodedata.name(letter).removeprefix("LATIN ").replace(" LETTER", "")
    for name in (f"MATHEMATICAL {style} {what}", f"{style} {what}"):
        try:
            return unicodedata.lookup(name)
        except KeyError:
            continue
    return letter


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write an inline formula."""
    translator.body.append(mathml(node, display=False))
    raise nodes.SkipNode


def visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed formula."""
    translator.body.append(f'<div class="math">{mathml(node, display=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
