"""What the site does that MkDocs does not: formulas without a script, links to files beside the pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.plugins import get_plugin_logger

log = get_plugin_logger("docs")
ROOT = Path(__file__).parents[2]
INLINE_FORMULA = re.compile(r"\$`([^`]+)`\$")
LINK_OUT_OF_DOCS = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>(?:\.\./)+[^)#]+)\)")


def on_config(config: Any) -> Any:
    """Show ```math fences, which GitHub shows too, as MathML, and a folder of pages in the navigation."""
    fence = {"name": "math", "class": "math", "format": _mathml}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    config.nav = [_with_pages(entry) for entry in config.nav]
    return config


def _with_pages(entry: dict[str, Any]) -> dict[str, Any]:
    ((title, target),) = entry.items()
    if not isinstance(target, str) or target.endswith(".md"):
        return entry
    return {title: [f"{target}/{page.name}" for page in sorted((ROOT / "docs" / target).glob("*.md"))]}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show inline formulas, written GitHub's way; name files that the site does not have."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def path(link: re.Match[str]) -> str:
        target = (folder / link["target"]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return link[0]
        if not target.exists():
            log.warning(f"{page.file.src_uri} links to {link['target']}, which does not exist")
        name = f"`{target.relative_to(ROOT)}`"
        return name if link["text"].strip("`") in name else f"{link['text']} ({name})"

    markdown = INLINE_FORMULA.sub(lambda formula: f"<span>{convert(formula[1])}</span>", markdown)
    return LINK_OUT_OF_DOCS.sub(path, markdown)


def _mathml(source: str, *_: Any, **__: Any) -> str:
    return f'<div class="math">{convert(source, display="block")}</div>'
