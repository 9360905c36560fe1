"""Let a picture lead to its file, which a phone can enlarge."""

from html import escape
from posixpath import join
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def visit(translator: HTML5Translator, node: nodes.image) -> None:
    """Write the picture, in a link unless it has one."""
    file = translator.builder.images.get(node["uri"])
    linked = file is not None and not isinstance(node.parent, nodes.reference)
    if linked:
        translator.body.append(f'<a href="{escape(join(translator.builder.imgpath, str(file)))}">')
    HTML5Translator.visit_image(translator, node)
    if linked:
        translator.body.append("</a>")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_node(nodes.image, override=True, html=(visit, HTML5Translator.depart_image))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
