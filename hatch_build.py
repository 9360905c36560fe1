"""Write the repository's address into the package's metadata: its links, and those of the README.

The repository does not know its own address. Where a build is told it (``REPOSITORY_ADDRESS``, which the
release workflow sets), the README installs from there, and its relative links lead there; elsewhere they
stay as they are, and the metadata have no links.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PLACES = {
    "Homepage": "",
    "Documentation": "/blob/{tag}/docs/index.md",
    "Changelog": "/blob/{tag}/CHANGELOG.md",
    "Source": "/tree/{tag}",
    "Issues": "/issues",
}
RELATIVE = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#|mailto:)(?P<target>[^)\s]+)\)")
"""Matches a Markdown link or image whose target is a file of the repository."""


class AddressHook(MetadataHookInterface):
    """Fills in ``readme`` and ``urls``; hatchling finds it by the name of this file."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling for each build."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if address := os.environ.get("REPOSITORY_ADDRESS", "").rstrip("/"):
            tag = f"v{metadata['version']}"
            metadata["urls"] = {name: address + place.format(tag=tag) for name, place in PLACES.items()}
            text = with_absolute_links(text, address, tag).replace("$REPOSITORY_ADDRESS", address)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, address: str, tag: str) -> str:
    """Return Markdown whose links to files lead to the repository at this tag, and images to their bytes."""

    def absolute(match: re.Match[str]) -> str:
        kind = "raw" if match["image"] else "blob"
        return f"{match['image']}[{match['text']}]({address}/{kind}/{tag}/{match['target']})"

    return RELATIVE.sub(absolute, text)
