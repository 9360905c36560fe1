"""Pages of the repository that lie outside docs/, and files that pages link to.

On GitHub a link such as ``../README.md`` or ``../grpo_verl_ext/plugin.py`` leads to the file. The site has
the Markdown files in ``PAGES`` as pages, and a page with the text of any other file or the names in a folder.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.project import Project
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "examples/ablations/RESULTS.md",
    "examples/anatomy.md",
    "examples/tasks/README.md",
    "examples/teacher/README.md",
    "recipe/grpo_verl_ext/README.md",
)


class ProjectWithRepository(Project):
    """Sphinx's list of pages, with those outside its folder."""

    def discover(self, *args: Any, **options: Any) -> set[str]:
        """Find the pages of docs/; add ``PAGES``."""
        super().discover(*args, **options)
        for page in PAGES:
            docname = f"repository/{page.removesuffix('.md')}"
            self.docnames.add(docname)
            self._path_to_docname[ROOT / page] = docname
            self._docname_to_path[docname] = Path("..", page)
        return self.docnames


class LinksOutOfDocs(SphinxTransform):
    """Let links to other files and folders of the repository lead to pages with their contents."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Replace the nodes that MyST-Parser makes of such links."""
        for link in list(self.document.findall(self._is_link)):
            target = Path(self.env.relfn2path(link["reftarget"].split("#")[0], self.env.docname)[1])
            if not target.exists() or not target.is_relative_to(ROOT) or target.is_relative_to(ROOT / "docs"):
                continue
            page = f"repository/{target.relative_to(ROOT)}"
            linked_files(self.env).setdefault(self.env.docname, set()).add(page)
            uri = self.app.builder.get_relative_uri(self.env.docname, page)
            link.replace_self(nodes.reference("", "", *link.children, refuri=uri, internal=True))

    @staticmethod
    def _is_link(node: nodes.Node) -> bool:
        is_reference = isinstance(node, addnodes.download_reference | addnodes.pending_xref)
        # a page of the site is a reference by its name
        return is_reference and node["reftype"] == "myst" and not is_page(node)


def is_page(node: nodes.Element) -> bool:
    """Whether MyST-Parser found a page of the site."""
    return node["refdomain"] == "doc" and not Path(node["reftarget"]).is_absolute()


def linked_files(env: BuildEnvironment) -> dict[str, set[str]]:
    """Pages to make for files and folders, by the page that links to them; kept between builds."""
    if not hasattr(env, "linked_files"):
        env.linked_files = {}
    links: dict[str, set[str]] = env.linked_files
    return links


def forget(_: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what a page linked to before it was changed."""
    linked_files(env).pop(docname, None)


def pages_of_files(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, contents and template of each page for a file or folder."""
    for page in sorted(set().union(*linked_files(app.env).values())):
        path = page.removeprefix("repository/")
        file = ROOT / path
        body = names_in(file) if file.is_dir() else text_of(app, file)
        yield page, {"title": path, "body": f"<h1><code>{escape(path)}</code></h1>{body}"}, "page.html"


def names_in(folder: Path) -> str:
    """A list of what a folder has."""
    names = sorted(each.name + "/" * each.is_dir() for each in folder.iterdir() if each.name[0] not in "._")
    return "<ul>" + "".join(f"<li><code>{escape(name)}</code></li>" for name in names) + "</ul>"


def text_of(app: Sphinx, file: Path) -> str:
    """The text of a file in colours."""
    try:
        language = get_lexer_for_filename(file.name).aliases[0]
    except ClassNotFound:
        language = "text"
    block: str = app.builder.highlighter.highlight_block(file.read_text(encoding="utf-8"), language)
    return block


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", lambda app: setattr(app.project, "__class__", ProjectWithRepository))
    app.connect("env-purge-doc", forget)
    app.connect("html-collect-pages", pages_of_files)
    app.add_transform(LinksOutOfDocs)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
