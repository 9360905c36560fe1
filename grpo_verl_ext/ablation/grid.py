"""Read a grid file of ``grpo-verl-ext ablate``, refuse what does not fit in it, list its runs, and keep it.

A declaration cannot change once a run has begun, not even when the records of its runs are removed: each
beginning is noted in ``<folder>.beginnings.json``, beside the folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

from grpo_verl_ext.ablation.declaration import FEWEST, Control, GridSettings, Measure, Starts
from grpo_verl_ext.runs.provenance import git_revision, utc_now
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.documents import Document, as_plain, parse_json, read_if_there, read_yaml
from grpo_verl_ext.utils.files import check_folder, write_whole

GRID = "grid.json"
"""The copy of the grid in its folder."""


class AblationError(ValueError):
    """The grid, or its folder, cannot be used; the message says what to type."""


@dataclass
class GridRun:
    """One training of the grid: a variant with a seed."""

    variant: str
    seed: int
    name: str
    """``<variant>/seed-<seed>``, the run's folder within the grid's."""
    training: VerlRun


def read_grid(file: Path, overrides: Sequence[str] = ()) -> GridSettings:
    """Read a grid file, apply ``key=value`` overrides, and check everything that needs no verl."""
    return checked(read_yaml(file, GridSettings, AblationError, overrides))


def checked(settings: GridSettings) -> GridSettings:
    """Return the settings, or refuse what in them does not fit together."""
    axes, seeds = settings.axes, settings.seeds
    check_folder(settings.folder)
    different = len({*seeds}) if any("{seed}" in override for override in settings.seed_overrides) else 1
    if different < len(seeds):
        raise AblationError(
            f"seeds is {seeds} and seed_overrides {settings.seed_overrides}, so that only {different} of a "
            f"variant's runs differ; valid are different seeds, and an override with {{seed}}. "
            f"Type: 'seeds=[1,2,3]', or 'seed_overrides=[data.seed={{seed}}]'"
        )
    if len(settings.baseline) != len(axes) or settings.base_variant not in settings.overrides:
        raise AblationError(
            f"baseline is {settings.baseline}; valid is one label of each axis, in their order: "
            + ", ".join(f"{axis}: {' | '.join(choices)}" for axis, choices in axes.items())
            + f". Type: 'baseline=[{','.join(next(iter(choices)) for choices in axes.values())}]'"
        )
    names = set[str]()
    for labels in product(*axes.values()):
        name = "-".join(labels)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name.casefold() in names:
            raise AblationError(
                f"axes has the labels {', '.join(labels)}, which name the folder {name!r}; valid is one of "
                f"letters, digits and ._- that no other variant has, in upper or lower case. Rename a label"
            )
        names.add(name.casefold())
    for fault in _contradictions(settings):
        raise AblationError(fault)
    return settings


def runs_of(settings: GridSettings) -> list[GridRun]:
    """All runs, seed by seed, so that a grid that is stopped early has complete comparisons."""
    found, grid = [], Path(settings.folder)
    for seed in settings.seeds:
        of_seed = [override.replace("{seed}", str(seed)) for override in settings.seed_overrides]
        for variant, of_variant in settings.overrides.items():
            overrides, name = [*settings.base, *of_variant, *of_seed], f"{variant}/seed-{seed}"
            training = VerlRun(grid / name, overrides, settings.steps, (grid.resolve().name, name))
            found.append(GridRun(variant, seed, name, training))
    return found


def _contradictions(grid: GridSettings) -> Iterator[str]:
    """Name what a declaration lacks, and what in it does not fit the grid, with what to type."""
    claims, seeds, control = bool(grid.expect), len(grid.seeds), grid.control
    for key in ("primary", "margin", "checks", "starts"):
        if getattr(grid, key) and not (claims if key == "starts" else grid.is_declared):
            another = next((name for name in grid.overrides if name != grid.base_variant), "<variant>")
            line = f"'expect=[{{variant: {another}, is: higher}}]'"
            yield f"{key} is given, but expect is empty: nothing is claimed. Type: {line}, or remove {key}"
    measures = f"a metric and one of {', '.join(get_args(Measure))}"
    needs = {
        "primary": (claims or grid.own_control, measures, "'primary={metric: <metric>, measure: area}'"),
        "margin": (claims, "the smallest difference that matters", "margin=0.05"),
        "control": (claims, "a known difference, which a setting that can show one must show", _CONTROL),
    }
    for key, (is_needed, valid, line) in needs.items():
        if is_needed and getattr(grid, key) is None:
            yield f"{key} is not given; valid is {valid}. Type: {line}"
    starts = grid.starts or Starts(seeds, seeds)
    if claims and not FEWEST <= starts.first <= starts.most <= seeds:
        given = f"starts is {{first: {starts.first}, most: {starts.most}}}, and " if grid.starts else ""
        yield (
            f"{given}seeds has {seeds}; valid is {FEWEST} ≤ first ≤ most ≤ number of seeds. "
            f"Type: 'starts={{first: 4, most: 8}}' 'seeds=[1,2,3,4,5,6,7,8]'"
        )
    if control is not None:
        is_own = control.grid is None and None not in (control.variant, control.is_)
        if not is_own and (control.grid is None or control != Control(grid=control.grid)):
            values = vars(control).items()
            given = ", ".join(f"{key.rstrip('_')}: {each}" for key, each in values if each is not None)
            yield f"control is {{{given}}}; valid are variant and is, or grid alone. Type: {_CONTROL}"
    yield from _wrong_comparisons(grid)


_CONTROL = "'control={variant: <variant>, is: lower}', or 'control={grid: <folder of a grid with a control>}'"


def _wrong_comparisons(grid: GridSettings) -> Iterator[str]:
    found = {f"expect[{index}]": each for index, each in enumerate(grid.comparisons)}
    found |= {"control": grid.own_control} if grid.own_control else {}
    named = {key: [*each.weights] for key, each in found.items()}
    named |= {f"checks[{index}].variants": each.variants for index, each in enumerate(grid.checks)}
    for key, names in named.items():
        for name in names:
            if name not in grid.overrides:
                yield f"{key} has {name!r}; valid are the variants {', '.join(grid.overrides)}. Write one"
    for key, comparison in found.items():
        if 0 in comparison.weights.values():
            yield (
                f"{key} compares {comparison.variant} with itself; valid are different variants, and against "
                f"is the baseline, {grid.base_variant}, unless it is given. Write against: <another variant>"
            )
    for index, given in enumerate(grid.expect):
        number = grid.comparisons[index].number
        if number is not None and (grid.starts or given.minus or not math.isfinite(number)):
            yield (
                f"expect[{index}].against is {number:g}; valid is a variant, or a finite number without "
                f"minus and starts, which are about variants. Write a variant, or remove minus and starts"
            )


def keep_grid(settings: GridSettings) -> None:
    """Write the grid, with the seeds of the runs begun there, into its folder; note its beginning."""
    folder, earlier = Path(settings.folder), check_unchanged(settings)
    if earlier is None and settings.is_declared:
        noted = [*read_beginnings(folder), Beginning(_fixed(settings), git_revision(), utc_now())]
        text = json.dumps([as_plain(each) for each in noted], indent=2) + "\n"
        write_whole(Path(f"{folder.resolve()}.beginnings.json"), text)
    folder.mkdir(parents=True, exist_ok=True)
    seeds = [*(earlier.seeds if earlier else []), *settings.seeds]
    kept = replace(settings, seeds=list(dict.fromkeys(seeds)))
    write_whole(folder / GRID, json.dumps(kept.as_dict(), indent=2) + "\n")


def read_begun(folder: Path) -> tuple[GridSettings, list[Beginning]]:
    """Read what `keep_grid` wrote into and beside a folder, which may have been moved."""
    beginnings = read_beginnings(folder)
    try:
        content = parse_json((folder / GRID).read_bytes(), dict[str, Any])
        settings = parse_json(json.dumps({**content, "folder": str(folder)}), GridSettings)
        return checked(settings), beginnings
    except (ValueError, OSError) as error:
        raise AblationError(f"{folder / GRID} is not a grid ({error}). It was left in place") from error


def check_unchanged(settings: GridSettings) -> GridSettings | None:
    """Refuse another declaration than that of the runs that were begun in the grid's folder, removed or not.

    The grid of those that are there is returned, or None.
    """
    folder, earlier = Path(settings.folder), None
    if (folder / GRID).is_file():
        kept, _ = read_begun(folder)
        earlier = kept if any(run.training.folder.is_dir() for run in runs_of(kept)) else None
    if earlier is not None and settings.is_declared and not earlier.is_declared:
        raise AblationError(
            f"{folder} holds runs that were begun without a declaration: they stay exploratory, since "
            f"nothing can be declared once a run exists. Type folder=<another>"
        )
    noted, now = read_beginnings(folder), _fixed(settings)
    before = noted[-1].declared if noted else {}
    if earlier is not None:
        before = _fixed(earlier) if earlier.is_declared else {}
    for key, value in before.items():
        # some of the declared seeds may be trained alone, as on another machine
        if value != now.get(key) and not (key == "seeds" and {*now[key]} < {*value}):
            raise AblationError(
                f"runs of {folder}, removed or not, were begun with {key}: {json.dumps(value)}, and now it "
                f"is {json.dumps(now.get(key))}; what is declared cannot change once a run exists. Write it "
                f"as it was, or type folder=<another>"
            )
    return earlier


def _fixed(settings: GridSettings) -> dict[str, Any]:
    """What cannot change once a run has begun; of the seeds, those that verdicts may use."""
    fixed = {key: value for key, value in settings.as_dict().items() if key not in ("metrics", "seeds")}
    return fixed | {"seeds": settings.usable}


@dataclass(frozen=True)
class Beginning(Document):
    """The start of a declared grid's first run, when no run of it was there."""

    declared: dict[str, Any]
    """The values that cannot change."""
    commit: str | None
    at: str
    """In UTC."""

    @property
    def declaration(self) -> str:
        """First 12 digits of the SHA-256 of the declared values."""
        text = json.dumps(self.declared, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_beginnings(folder: Path) -> list[Beginning]:
    """Read what `keep_grid` noted beside the folder, the first beginning first."""
    file = Path(f"{folder.resolve()}.beginnings.json")
    return read_if_there(file, list[Beginning], AblationError, "a list of when the grid was begun") or []
