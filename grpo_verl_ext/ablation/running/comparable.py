"""Find the runs of a grid whose records say that they cannot be compared with the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product

from grpo_verl_ext.ablation.declaration.grid import GridSettings
from grpo_verl_ext.ablation.running.checks import INPUTS
from grpo_verl_ext.ablation.running.state import Record
from grpo_verl_ext.runs.provenance import CHANGED
from grpo_verl_ext.utils.overrides import key_of

_Run = tuple[str, int]
"""(variant, seed)"""
_TASK = "task"
"""The group and the section that choose model and data together."""


def unlike_the_others(records: Mapping[_Run, Record], settings: GridSettings) -> dict[_Run, str]:
    """Return why a run is left out: its versions, its model, its data, or sources that cannot be known.

    Versions are compared with those of most runs, model and data with the baseline's of the same seed, unless
    that variant or the baseline itself chooses them. A record of an earlier version, without either, is not
    judged.

    Returns:
        (variant, seed) → the reason; runs that can be compared have none.
    """
    known = {run: record for run, record in records.items() if record.inputs or record.began}
    return {run: "; ".join(found) for run in known if (found := [*_reasons(run, known, settings)])}


def _reasons(run: _Run, known: Mapping[_Run, Record], settings: GridSettings) -> Iterator[str]:
    record, (variant, seed) = known[run], run
    if settings.is_declared and str(record.git_revision).endswith(CHANGED):
        yield f"its sources differed from their commit ({record.git_revision})"
    for name, version, usual in _other_versions(record, known):
        yield f"it was made with {name} {version}, most runs with {usual}"
    baseline = known.get((settings.declaration.baseline, seed))
    own = _with_inputs_of_their_own(settings)
    if baseline is not None and not own & {variant, settings.declaration.baseline}:
        for key in sorted(record.inputs.keys() | baseline.inputs.keys()):
            if record.inputs.get(key) != baseline.inputs.get(key):
                yield f"its {key} is another than that of {settings.declaration.baseline}/seed-{seed}"


def _other_versions(record: Record, known: Mapping[_Run, Record]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys(name for each in known.values() for name in each.versions):
        counted = Counter(each.versions.get(name, "none") for each in known.values())
        version, usual = record.versions.get(name, "none"), counted.most_common(1)[0][0]
        if counted[version] < counted[usual]:
            yield name, version, usual


def _with_inputs_of_their_own(settings: GridSettings) -> set[str]:
    variants = product(*(choices.values() for choices in settings.axes.values()))
    names = settings.declaration.variants
    return {
        name
        for name, overrides in zip(names, variants, strict=True)
        if any(_chooses_inputs(key_of(each)) for of_axis in overrides for each in of_axis)
    }


def _chooses_inputs(key: str) -> bool:
    return key in (*INPUTS, _TASK) or key.startswith(f"{_TASK}.")
