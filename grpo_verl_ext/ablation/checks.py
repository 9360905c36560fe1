"""Check the runs of a grid: all before the first one starts, and by their records which can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.ablation.grid import AblationError, GridRun, GridSettings, runs_of
from grpo_verl_ext.ablation.inputs import STARTS, is_later
from grpo_verl_ext.ablation.state import Record
from grpo_verl_ext.runs.provenance import CHANGED
from grpo_verl_ext.tasks.chain_sum.prepared import (
    GREEDY_AT_LEAST,
    SAMPLED,
    SAMPLED_WITHIN,
    TASKS,
    is_standard,
    read_checked,
)
from grpo_verl_ext.tasks.folders import PreparedFolderError
from grpo_verl_ext.utils.errors import as_typed
from grpo_verl_ext.utils.keys import key_of


@dataclass(frozen=True)
class Plugin:
    """What the plugin knows of a training; the command line hands it in."""

    composed: Callable[[Sequence[str]], DictConfig]
    """verl's configuration from the arguments of ``main_ppo``; raises ValueError where verl would refuse."""
    check: Callable[[DictConfig], None]
    """Raises ValueError where the driver would refuse."""
    own_task: Callable[[DictConfig], DictConfig | None]
    """The section of a task of this package."""
    prepare: Callable[[str, int], object]
    """Prepares an embedded task with a seed."""


def compose_runs(runs: Sequence[GridRun], plugin: Plugin) -> dict[str, DictConfig]:
    """Compose verl's configuration of every run.

    Returns:
        Name of the run → configuration.

    Raises:
        AblationError: verl refuses the overrides, or would at its first step; the message names the run.
    """
    configs = {}
    for run in runs:
        try:
            configs[run.name] = plugin.composed(run.training.arguments())
        except ValueError as error:
            raise AblationError(f"{run.name}: verl refuses its overrides: {error}") from error
        try:
            _check_integers(configs[run.name], plugin)
        except (AblationError, OmegaConfBaseException) as error:
            raise AblationError(f"{run.name}: {error}") from error
    return configs


def _check_integers(config: DictConfig, plugin: Plugin) -> None:
    """Refuse 8.0 and other text where verl, once it has loaded everything, or `tasks_to_prepare` counts."""
    _check_integer(config, "actor_rollout_ref.rollout.n", 1, "8")
    if _embedded_task(config, plugin) is not None:
        _check_integer(config, "task.seed", 0, "1")


def _check_integer(config: DictConfig, key: str, least: int, example: str) -> None:
    value = OmegaConf.select(config, key)
    if type(value) is not int or not least <= value < 2**63:
        raise AblationError(
            f"{key} is {as_typed(value)}; valid is an integer ≥ {least}. Type: {key}={example}"
        )


def _embedded_task(config: DictConfig, plugin: Plugin) -> DictConfig | None:
    task = plugin.own_task(config)
    return task if task is not None and task.name in TASKS else None


def check_runs(configs: Mapping[str, DictConfig], plugin: Plugin) -> None:
    """Run the driver's checks on every run.

    Raises:
        AblationError: a check fails; the message names the run.
    """
    for name, config in configs.items():
        try:
            plugin.check(config)
        except (ValueError, OmegaConfBaseException) as error:
            raise AblationError(f"{name}: {error}") from error


def check_starts(runs: Sequence[GridRun], configs: Mapping[str, DictConfig], plugin: Plugin) -> None:
    """Refuse prepared embedded tasks whose starting models are outside the standard; others are not checked.

    Raises:
        AblationError: names the seeds, both accuracies and what to type.
    """
    outside, seeds = {}, set()
    for run in runs:
        task = _embedded_task(configs[run.name], plugin)
        if task is None:
            continue
        try:
            manifest = read_checked(Path(task.folder))
        except PreparedFolderError as error:
            raise AblationError(f"{run.name}: {error}") from error
        if not is_standard(manifest):
            outside[f"task.seed={task.seed}"] = (
                f"greedy {manifest['greedy_accuracy']:.3f}, sampled {manifest['sampled_accuracy']:.3f}"
            )
            seeds |= {run.seed} & {task.seed}
    if outside:
        named = "; ".join(f"{key} ({found})" for key, found in outside.items())
        raise AblationError(
            f"starting models outside the standard: {named}; valid is an accuracy of at least "
            f"{GREEDY_AT_LEAST:g} greedy, and of {SAMPLED:g} ± {SAMPLED_WITHIN:g} sampled. "
            f"Type another seed: {_without(seeds, [run.seed for run in runs])}"
        )


def _without(outside: set[int], seeds: Sequence[int]) -> str:
    """The seeds with others in place of those outside, if the task's seed is the grid's."""
    if not outside:
        return "task.seed=<another> in base"
    inside = [seed for seed in dict.fromkeys(seeds) if seed not in outside]
    fresh = range(max(seeds) + 1, max(seeds) + 1 + len(outside))
    return f"'seeds=[{','.join(map(str, [*inside, *fresh]))}]'"


def tasks_to_prepare(configs: Mapping[str, DictConfig], plugin: Plugin) -> list[tuple[str, int]]:
    """Names and seeds of the embedded tasks that runs need and that have not been prepared."""
    tasks = [_embedded_task(config, plugin) for config in configs.values()]
    needed = [task for task in tasks if task is not None and not Path(task.folder).exists()]
    return sorted({(str(task.name), int(task.seed)) for task in needed})


_Run = tuple[str, int]
"""(variant, seed)"""
_TASK = "task"
"""The group and the section that choose model and data together."""


def unlike_the_others(records: Mapping[_Run, Record | None], settings: GridSettings) -> dict[_Run, str]:
    """Return why a finished run is left out: another training than the grid's, or than it is compared with.

    Versions are compared with those of most runs. A run is then compared with the baseline's of the same
    seed, and those that remain within each declared comparison: versions, in a declared comparison commits,
    and model and data, unless the two variants choose them differently. A record of an earlier version,
    without any of them, is judged by its overrides alone.

    Args:
        records: of each finished run; None where there is none.

    Returns:
        (variant, seed) → the reason; runs that can be compared have none.
    """
    known = {run: each for run, each in records.items() if each is not None and (each.inputs or each.began)}
    trainings = {(run.variant, run.seed): run.training for run in runs_of(settings)}
    baseline = settings.base_variant
    found = {}
    for run, record in records.items():
        reasons = []
        if record is None:
            reasons += ["it has no record, as other runs have"] if settings.is_declared and known else []
        elif {*record.overrides} != {*trainings[run].overrides} or record.steps != settings.steps:
            reasons.append("its overrides or steps are not those of the grid")
        if run in known:
            reasons += [*_own_reasons(run, known, settings), *_unlike(run, baseline, known, settings)]
        found[run] = "; ".join(reasons)
    for (one, other), seed in product(_declared_pairs(settings), settings.seeds):
        if found.get((one, seed)) == found.get((other, seed)) == "":
            found[one, seed] = "; ".join(_unlike((one, seed), other, known, settings))
    return {run: why for run, why in found.items() if why}


def _declared_pairs(settings: GridSettings) -> Iterator[tuple[str, str]]:
    """Yield the variants of each declared comparison and of the control, two by two."""
    for comparison in (*settings.comparisons, settings.own_control):
        yield from combinations(comparison.variants if comparison else (), 2)


def _own_reasons(run: _Run, known: Mapping[_Run, Record], settings: GridSettings) -> Iterator[str]:
    if settings.is_declared and str(known[run].git_revision).endswith(CHANGED):
        yield f"its sources differed from their commit ({known[run].git_revision})"
    for name, (version, usual) in _other_versions(known[run], known).items():
        yield f"it was made with {name} {version}, most runs with {usual}"


def _unlike(run: _Run, variant: str, known: Mapping[_Run, Record], settings: GridSettings) -> Iterator[str]:
    """Say in what a run differs from that of the variant with the same seed, besides its `_own_reasons`."""
    seed, record, other = run[1], known.get(run), known.get((variant, run[1]))
    if record is None or other is None:
        return
    unusual = _other_versions(record, known)
    for name, (version, others) in _differing(record.versions, other.versions).items():
        if name not in unusual:
            yield f"it was made with {name} {version}, and {variant}/seed-{seed} with {others}"
    commit, others = (str(each.git_revision).removesuffix(CHANGED) for each in (record, other))
    if settings.is_declared and commit != others:
        yield f"its commit is {commit}, and that of {variant}/seed-{seed} {others}"
    if _chosen(run[0], settings, _is_start) != _chosen(variant, settings, _is_start):
        return
    same_later = _chosen(run[0], settings, is_later) == _chosen(variant, settings, is_later)
    for key in sorted(_differing(record.inputs, other.inputs)):
        in_both = key in record.inputs and key in other.inputs
        if not is_later(key) or (in_both and same_later):
            yield f"its {key} is another than that of {variant}/seed-{seed}"


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


def _chosen(variant: str, settings: GridSettings, is_asked: Callable[[str], bool]) -> set[str]:
    """Return the variant's own overrides of keys that are asked for."""
    variants = product(*(choices.values() for choices in settings.axes.values()))
    overrides = dict(zip(settings.variants, variants, strict=True))[variant]
    return {each for of_axis in overrides for each in of_axis if is_asked(key_of(each))}


def _is_start(key: str) -> bool:
    return key in (*STARTS, _TASK) or key.startswith(f"{_TASK}.")
