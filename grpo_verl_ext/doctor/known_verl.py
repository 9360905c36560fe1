"""Tell how well the installed verl is known, and what of it is not as this package relies on it."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from grpo_verl_ext.contract.reliances import Seam
from grpo_verl_ext.contract.seams import contract
from grpo_verl_ext.contract.tier import seams_of_lower_tier
from grpo_verl_ext.contract.verl_sources import OURS, Sources
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.which_verl import UnsupportedVerlError, WhichVerl, which_verl


@dataclass(frozen=True)
class BrokenSeam:
    """Something of verl's that is not as this package relies on it."""

    moved: str
    """A sentence: what it is, and which modules of this package rely on it."""
    carries: tuple[str, ...]
    """The presets and features that these modules belong to."""


@dataclass(frozen=True)
class KnownVerl:
    """The installed verl, and its contract."""

    verl: WhichVerl
    seams: int
    broken: tuple[BrokenSeam, ...]

    @property
    def warnings(self) -> list[str]:
        """Sentences about what may go wrong with this verl."""
        development = self.verl.words if self.verl.is_untested_development else ""
        broken = [f"{each.moved}. It carries: {'; '.join(each.carries)}" for each in self.broken]
        return [each for each in (development, self.verl.another, *broken) if each]


def known_verl() -> KnownVerl:
    """Check the contract on the installed verl, which takes seconds and imports nothing of it.

    A machine without vLLM, or TransferQueue, has nothing of theirs to check.
    """
    sources, verl = Sources(), which_verl()
    whole = contract(sources)
    of_tier = seams_of_lower_tier(whole) if verl.has_losses_only else whole
    seams = [seam for seam in of_tier if sources.file(seam.where.partition(".")[0])]
    return KnownVerl(verl, len(seams), tuple(broken_seams(seams, sources)))


def broken_seams(seams: Collection[Seam], sources: Sources) -> Iterator[BrokenSeam]:
    """Yield each reliance that does not hold, with what it carries."""
    for seam in seams:
        carries = tuple(dict.fromkeys(_feature(name, sources) for name in seam.by))
        yield from (BrokenSeam(moved, carries) for moved in seam.moved(sources))


def _feature(name: str, sources: Sources) -> str:
    """Return the preset that a file is, or a module's feature with the first sentence that describes it."""
    path = PurePosixPath(name)
    if path.suffix == ".yaml":
        return f"+{path.parent.name}={path.stem}"
    parts = name.split(".")
    feature = ".".join(parts[: 1 if parts[0] not in ("verl_plugin", "catalogue") else 2])
    described = ast.get_docstring(sources.tree(f"{OURS}.{feature}")) or ""
    return f"{feature} ({described.splitlines()[0].rstrip('.')})" if described else feature


def refuse_unsupported(as_json: bool) -> bool:
    """Print why no training can use the plugin with the installed verl, if so; return whether it is so."""
    try:
        which_verl()
    except UnsupportedVerlError as error:
        if as_json:
            print(json.dumps({"complaints": [str(error)]}, indent=2))
        else:
            make_console().print(str(error), style="bold red")
        return True
    return False
