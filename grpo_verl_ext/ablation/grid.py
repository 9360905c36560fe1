"""The runs that a grid file of ``grpo-verl-ext ablate`` describes, and what their folder keeps of it.

A declaration cannot change once a run has begun, not even when the records of its runs are removed: each
beginning is noted in ``<folder>.beginnings.json``, beside the folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from grpo_verl_ext.ablation.declaration import GridSettings, contradictions
from grpo_verl_ext.runs.provenance import git_revision, utc_now
from grpo_verl_ext.runs.verl_run import VerlRun
from grpo_verl_ext.utils.documents import Document, as_plain, parse_json, read_yaml
from grpo_verl_ext.utils.files import write_whole

GRID = "grid.json"
"""The copy of the grid in its folder."""
_Kind = TypeVar("_Kind")


class AblationError(ValueError):
    """The grid, or its folder, cannot be used; the message says what to type."""


@dataclass
class GridRun:
    """One training of the grid: a variant with a seed."""

    variant: str
    seed: int
    training: VerlRun

    @property
    def name(self) -> str:
        """``<variant>/seed-<seed>``, the run's folder within the grid's."""
        return f"{self.variant}/seed-{self.seed}"


def read_grid(file: Path, overrides: Sequence[str] = ()) -> GridSettings:
    """Read a grid file, apply ``key=value`` overrides, and check everything that needs no verl."""
    return _checked(read_yaml(file, GridSettings, AblationError, overrides))


def read_kept(content: dict[str, Any], folder: Path) -> GridSettings:
    """Make a grid from what `GridSettings.as_dict` gave."""
    return _checked(parse_json(json.dumps({**content, "folder": str(folder)}), GridSettings))


def _checked(settings: GridSettings) -> GridSettings:
    axes, seeds = settings.axes, settings.seeds
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
    for fault in contradictions(settings):
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
            found.append(GridRun(variant, seed, training))
    return found


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


def read_kept_grid(folder: Path) -> GridSettings:
    """Read what `keep_grid` wrote into a folder, which may have been moved."""
    try:
        return read_kept(parse_json((folder / GRID).read_bytes(), dict[str, Any]), folder)
    except (ValueError, OSError) as error:
        raise AblationError(f"{folder / GRID} is not a grid ({error}). It was left in place") from error


def check_unchanged(settings: GridSettings) -> GridSettings | None:
    """Refuse another declaration than that of the runs that were begun in the grid's folder, removed or not.

    The grid of those that are there is returned, or None.
    """
    folder, earlier = Path(settings.folder), None
    if (folder / GRID).is_file():
        kept = read_kept_grid(folder)
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
    return read_if_there(file, list[Beginning], "a list of when the grid was begun") or []


def read_if_there(
    file: Path, kind: type[_Kind], what: str, then: str = "type folder=<another>"
) -> _Kind | None:
    """Read a file that this package wrote, and refuse what is not ``what``; None where there is none."""
    try:
        return parse_json(file.read_bytes(), kind) if file.exists() else None
    except (ValueError, OSError) as error:
        raise AblationError(f"{file} is not {what} ({error}). It was left in place; {then}") from error
