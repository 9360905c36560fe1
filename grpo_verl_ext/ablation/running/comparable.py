"""Find the runs of a grid whose records say that they cannot be compared with the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product

from grpo_verl_ext.ablation.declaration.grid import GridSettings, runs_of
from grpo_verl_ext.ablation.running.checks import INPUTS
from grpo_verl_ext.ablation.running.state import Record
from grpo_verl_ext.runs.provenance import CHANGED
from grpo_verl_ext.utils.keys import key_of

_Run = tuple[str, int]
"""(variant, seed)"""
_TASK = "task"
"""The group and the section that choose model and data together."""


def unlike_the_others(records: Mapping[_Run, Record | None], settings: GridSettings) -> dict[_Run, str]:
    """Return why a finished run is left out: another training than the grid's, or than it is compared with.

    Versions are compared with those of most runs, and with the baseline's of the same seed; so are commits in
    a declared comparison, and model and data, unless that variant or the baseline itself chooses them. A
    record of an earlier version, without any of them, is judged by its overrides alone.

    Args:
        records: of each finished run; None where there is none.

    Returns:
        (variant, seed) → the reason; runs that can be compared have none.
    """
    known = {run: each for run, each in records.items() if each is not None and (each.inputs or each.began)}
    trainings = {(run.variant, run.seed): run.training for run in runs_of(settings)}
    found = {}
    for run, record in records.items():
        reasons = []
        if record is None:
            reasons += ["it has no record, as other runs have"] if settings.is_declared and known else []
        elif {*record.overrides} != {*trainings[run].overrides} or record.steps != settings.steps:
            reasons.append("its overrides or steps are not those of the grid")
        found[run] = "; ".join([*reasons, *(_reasons(run, known, settings) if run in known else ())])
    return {run: why for run, why in found.items() if why}


def _reasons(run: _Run, known: Mapping[_Run, Record], settings: GridSettings) -> Iterator[str]:
    record, (variant, seed), first = known[run], run, settings.declaration.baseline
    if settings.is_declared and str(record.git_revision).endswith(CHANGED):
        yield f"its sources differed from their commit ({record.git_revision})"
    unusual = _other_versions(record, known)
    for name, (version, usual) in unusual.items():
        yield f"it was made with {name} {version}, most runs with {usual}"
    baseline = known.get((first, seed))
    if baseline is None:
        return
    for name, (version, other) in _differing(record.versions, baseline.versions).items():
        if name not in unusual:
            yield f"it was made with {name} {version}, and {first}/seed-{seed} with {other}"
    commit, other = (str(each.git_revision).removesuffix(CHANGED) for each in (record, baseline))
    if settings.is_declared and commit != other:
        yield f"its commit is {commit}, and that of {first}/seed-{seed} {other}"
    if not _with_inputs_of_their_own(settings) & {variant, first}:
        for key in sorted(_differing(record.inputs, baseline.inputs)):
            yield f"its {key} is another than that of {first}/seed-{seed}"


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = sorted(one.keys() | other.keys())
    both = {name: (one.get(name, "none"), other.get(name, "none")) for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def _other_versions(record: Record, known: Mapping[_Run, Record]) -> dict[str, tuple[str, str]]:
    """Return the packages of which fewer runs have the record's version than another: name → both."""
    found = {}
    for name in dict.fromkeys(name for each in known.values() for name in each.versions):
        counted = Counter(each.versions.get(name, "none") for each in known.values())
        version, usual = record.versions.get(name, "none"), counted.most_common(1)[0][0]
        if counted[version] < counted[usual]:
            found[name] = version, usual
    return found


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
