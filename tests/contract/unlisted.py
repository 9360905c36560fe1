"""List what our sources use of verl and the table of seams lacks."""

from collections.abc import Iterator, Sequence

from our_side import (
    attributes_used,
    is_open,
    keys_read,
    names_used,
    overrides,
    short,
)
from reliances import Interface, Keys, Members, Overridden
from seams import OURS, Seam
from verl_sources import Sources

TABLE = "tests/contract/seams.py"


def unlisted(sources: Sources, seams: Sequence[Seam]) -> Iterator[str]:
    """A sentence for each name, attribute, override and key that is no seam."""
    yield from _names(sources, seams)
    yield from _attributes(sources, seams)
    yield from _overrides(sources, seams)
    yield from _keys(sources, seams)


def _names(sources: Sources, seams: Sequence[Seam]) -> Iterator[str]:
    for name, module in sorted(set(names_used(sources))):
        under = [s for s in seams if s.where == name or s.where.startswith(f"{name}.")]
        if not any(module in seam.by for seam in under):
            yield f"{OURS}.{module} names {name}, which {TABLE} does not say of it"


def _attributes(sources: Sources, seams: Sequence[Seam]) -> Iterator[str]:
    members = {
        (n, by)
        for seam in seams
        if isinstance(seam.relies, Members)
        for n in seam.relies.names
        for by in seam.by
    }
    methods = {(seam.where.rpartition(".")[2], by) for seam in seams for by in seam.by}
    for name, module in sorted(set(attributes_used(sources)) - members - methods):
        yield f"{OURS}.{module} uses {name} of a class of verl's, which {TABLE} does not say of it"


def _overrides(sources: Sources, seams: Sequence[Seam]) -> Iterator[str]:
    listed = {(sources.find(where).node, module) for where, module in _listed_methods(seams)}
    for their, our in overrides(sources):
        if (their.node, short(our.module)) not in listed:
            yield f"{our.module} overrides {their.node.name} of {their.module}, which {TABLE} does not say"


def _listed_methods(seams: Sequence[Seam]) -> Iterator[tuple[str, str]]:
    for seam in seams:
        for module in seam.by:
            if isinstance(seam.relies, Overridden):
                yield seam.where, module
            if isinstance(seam.relies, Interface):
                yield from ((f"{seam.where}.{method}", module) for method in seam.relies.methods)


def _keys(sources: Sources, seams: Sequence[Seam]) -> Iterator[str]:
    keys = [(seam.relies, seam.by) for seam in seams if isinstance(seam.relies, Keys)]
    listed = {(name, by) for relies, who in keys for name in (*relies.names, *relies.values) for by in who}
    for key, module in sorted(set(keys_read(sources))):
        sections = {name for name, by in listed if by == module and name.startswith(f"{key}.")}
        if "." in key and not sections and (key, module) not in listed and not is_open(key):
            yield f"{OURS}.{module} reads the key {key}, which {TABLE} does not say of it"
