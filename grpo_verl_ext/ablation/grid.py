"""Read a grid file of ``grpo-verl-ext ablate``, refuse what does not fit in it, keep it, and read its runs.

A declaration cannot change once a run has begun, not even when the records of its runs are removed: each
beginning is noted in ``<folder>.beginnings.json``, beside the folder.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from grpo_verl_ext.ablation.declaration import FEWEST, GridSettings, Starts
from grpo_verl_ext.runs.provenance import git_revision, utc_now
from grpo_verl_ext.runs.verl_run import CorruptFileError, Metrics, VerlRun
from grpo_verl_ext.utils.documents import Document, as_plain, parse_json, read_if_there, read_yaml
from grpo_verl_ext.utils.files import check_folder, write_whole

GRID = "grid.json"  # the copy of the grid in its folder
FAILURE = "failed.txt"
RUN_RECORD = "run.json"
NOTE = "job.json"
STARTS = (
    *("actor_rollout_ref.model.path", "data.train_files", "data.val_files"),
    *("reward.custom_reward_function.path", "reward.reward_model.model_path"),
)
"""Keys of the files that every record has; those of the others are compared where both records have them."""


class AblationError(ValueError):
    """The grid, or its folder, cannot be used; the message says what to type."""


State = Literal["waiting", "begun", "failed", "finished", "unreadable"]
"""Of a run. After begun, the next attempt resumes from the last checkpoint. Of one that is unreadable a file
cannot be read: it is neither started nor compared until that is fixed or moved."""


@dataclass(frozen=True)
class Record:
    """What a run was begun with."""

    overrides: list[str]
    steps: int
    git_revision: str | None
    versions: dict[str, str]
    inputs: dict[str, str] = field(default_factory=dict)
    """Key of verl's configuration → SHA-256 of the model or the data that it names."""
    machine: str | None = None
    """Processor and threads; None: a cluster's."""
    began: str | None = None
    ended: str | None = None
    """When the first attempt began, and when the run was finished, in UTC."""


@dataclass(frozen=True)
class Job(Document):
    """A submitted Ray job whose end has not been seen."""

    submission_id: str
    address: str
    attempt: str  # name of the attempt's files, without a suffix


@dataclass
class RunStatus:
    """A run's state and metrics at the time of reading."""

    state: State
    metrics: Metrics
    reason: str | None = None  # why the run failed, or what cannot be read

    @property
    def is_to_do(self) -> bool:
        """Whether ``ablate run`` starts it."""
        return self.state in ("waiting", "begun", "failed")


@dataclass
class GridRun:
    """One training of the grid, a variant with a seed, and what its folder says."""

    variant: str
    seed: int
    name: str
    """``<variant>/seed-<seed>``, the run's folder within the grid's."""
    training: VerlRun

    def status(self) -> RunStatus:
        """Read its files: it is finished once its last step is logged, with or without checkpoints."""
        metrics: Metrics = {}
        try:
            metrics = self.training.metrics()
            if self.training.has_ended(metrics):
                return RunStatus("finished", metrics)
            file = self.training.folder / FAILURE
            if file.exists():
                return RunStatus("failed", metrics, file.read_text(encoding="utf-8", errors="replace"))
        except CorruptFileError as error:
            return RunStatus("unreadable", {}, str(error))
        except OSError as error:
            why = f"{error.filename} cannot be read ({error.strerror}). It was left in place; move it away"
            return RunStatus("unreadable", metrics, why)
        return RunStatus("begun" if self.training.folder.is_dir() else "waiting", metrics)

    def record(self) -> Record | None:
        """What it was begun with; None if it has not begun."""
        return read_if_there(self.training.folder / RUN_RECORD, Record, AblationError, "the record of a run")

    def job(self) -> Job | None:
        """Its job whose end has not been seen; None if there is none."""
        then = "check with `ray job list` whether the run's job is there, and move the file away"
        return read_if_there(self.training.folder / NOTE, Job, AblationError, "the note of a job", then)


@dataclass(frozen=True)
class Beginning(Document):
    """The start, in UTC, of a declared grid's first run, when no run of it was there."""

    declared: dict[str, Any]  # the values that cannot change
    commit: str | None
    at: str

    @property
    def declaration(self) -> str:
        """First 12 digits of the SHA-256 of the declared values."""
        return hashlib.sha256(json.dumps(self.declared, sort_keys=True).encode()).hexdigest()[:12]


def read_grid(file: Path, overrides: Sequence[str] = ()) -> GridSettings:
    """Read a grid file, apply ``key=value`` overrides, and check everything that needs no verl."""
    return checked(read_yaml(file, GridSettings, AblationError, overrides))


def checked(grid: GridSettings) -> GridSettings:
    """Return the settings, or refuse the first fault in them, which may be the cause of others."""
    if not grid.folder:
        raise AblationError("folder is not given, and has no default. Type: folder=<value>")
    check_folder(grid.folder)
    axes, seeds = grid.axes, grid.seeds
    different = len({*seeds}) if any("{seed}" in override for override in grid.seed_overrides) else 1
    if different < len(seeds):
        said = f"seeds is {seeds} and seed_overrides {grid.seed_overrides}, so that only {different} of a "
        said += "variant's runs differ; valid are different seeds, and an override with {seed}"
        raise AblationError(f"{said}. Type: 'seeds=[1,2,3]', or 'seed_overrides=[data.seed={{seed}}]'")
    if len(grid.baseline) != len(axes) or grid.base_variant not in grid.overrides:
        valid = ", ".join(f"{axis}: {' | '.join(choices)}" for axis, choices in axes.items())
        said = f"baseline is {grid.baseline}; valid is one label of each axis, in their order: {valid}"
        line = f"'baseline=[{','.join(next(iter(choices)) for choices in axes.values())}]'"
        raise AblationError(f"{said}. Type: {line}")
    names = set[str]()
    for labels in product(*axes.values()):
        name = "-".join(labels)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name.casefold() in names:
            valid = "one of letters, digits and ._- that no other variant has, in upper or lower case"
            said = f"axes has the labels {', '.join(labels)}, which name the folder {name!r}"
            raise AblationError(f"{said}; valid is {valid}. Rename a label")
        names.add(name.casefold())
    for fault in _wrong_claims(grid):
        raise AblationError(fault)
    found = {f"expect[{index}]": each for index, each in enumerate(grid.comparisons)}
    found |= {"control": grid.own_control} if grid.own_control else {}
    named = {key: [*each.weights] for key, each in found.items()}
    named |= {f"checks[{index}].variants": each.variants for index, each in enumerate(grid.checks)}
    for key, all_names in named.items():
        for name in (each for each in all_names if each not in grid.overrides):
            valid = f"valid are the variants {', '.join(grid.overrides)}"
            raise AblationError(f"{key} has {name!r}; {valid}. Write one")
    for key, comparison in found.items():
        if 0 in comparison.weights.values():
            valid = "valid are different variants. Write against: <another variant>"
            raise AblationError(f"{key} compares {comparison.variant} with itself; {valid}")
    for key, given in zip(found, grid.expect, strict=False):
        number = found[key].number
        if number is not None and (grid.starts or given.minus or not math.isfinite(number)):
            valid = "valid is a variant, or a finite number without minus and starts"
            fix = "Write a variant, or remove minus and starts"
            raise AblationError(f"{key}.against is {number:g}; {valid}. {fix}")
    return grid


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


def _wrong_claims(grid: GridSettings) -> Iterator[str]:
    claims, seeds, control = bool(grid.expect), len(grid.seeds), grid.control
    for key in ("primary", "margin", "checks", "starts"):
        if getattr(grid, key) and not (claims if key == "starts" else grid.is_declared):
            another = next((name for name in grid.overrides if name != grid.base_variant), "<variant>")
            line = f"'expect=[{{variant: {another}, is: higher}}]'"
            yield f"{key} is given, but expect is empty: nothing is claimed. Type: {line}, or remove {key}"
    line = "'primary={metric: <metric>, measure: area}'"
    needs = {
        "primary": (claims or grid.own_control, "a metric and its measure", line),
        "margin": (claims, "the smallest difference that matters", "margin=0.05"),
        "control": (claims, "a known difference, which shows that this setting can show one", _CONTROL),
    }
    for key, (is_needed, valid, line) in needs.items():
        if is_needed and getattr(grid, key) is None:
            yield f"{key} is not given; valid is {valid}. Type: {line}"
    starts = grid.starts or Starts(seeds, seeds)
    if claims and not FEWEST <= starts.first <= starts.most <= seeds:
        are = f"starts is {{first: {starts.first}, most: {starts.most}}}, and " if grid.starts else ""
        valid, line = f"{FEWEST} ≤ first ≤ most ≤ number of seeds", "'starts={first: 4, most: 8}'"
        yield f"{are}seeds has {seeds}; valid is {valid}. Type: {line} 'seeds=[1,2,3,4,5,6,7,8]'"
    if control is not None:
        given = {key.rstrip("_"): each for key, each in vars(control).items() if each is not None}
        if {*given} - {"against"} != {"variant", "is"} and {*given} != {"grid"}:
            said = ", ".join(f"{key}: {each}" for key, each in given.items())
            yield f"control is {{{said}}}; valid are variant and is, or grid alone. Type: {_CONTROL}"


_CONTROL = "'control={variant: <variant>, is: lower}', or 'control={grid: <folder of a grid with a control>}'"


def keep_grid(settings: GridSettings) -> None:
    """Write the grid, with the seeds of the runs begun there, into its folder; note its beginning."""
    folder, (earlier, noted) = Path(settings.folder), check_unchanged(settings)
    if earlier is None and settings.is_declared:
        noted.append(Beginning(_fixed(settings), git_revision(), utc_now()))
        text = json.dumps([as_plain(each) for each in noted], indent=2) + "\n"
        write_whole(Path(f"{folder.resolve()}.beginnings.json"), text)
    folder.mkdir(parents=True, exist_ok=True)
    seeds = dict.fromkeys([*(earlier.seeds if earlier else []), *settings.seeds])
    write_whole(folder / GRID, json.dumps(as_plain(replace(settings, seeds=[*seeds])), indent=2) + "\n")


def read_begun(folder: Path) -> tuple[GridSettings | None, list[Beginning]]:
    """Read what `keep_grid` wrote into a folder, which may have been moved, and beside it; None: no grid."""
    file, noted = folder / GRID, Path(f"{folder.resolve()}.beginnings.json")
    beginnings = read_if_there(noted, list[Beginning], AblationError, "a list of when the grid was begun")
    if not file.is_file():
        return None, beginnings or []
    try:
        grid = replace(parse_json(file.read_bytes(), GridSettings), folder=str(folder))
        return checked(grid), beginnings or []
    except (ValueError, OSError) as error:
        raise AblationError(f"{file} is not a grid ({error}). It was left in place") from error


def check_unchanged(settings: GridSettings) -> tuple[GridSettings | None, list[Beginning]]:
    """Refuse another declaration than that of the runs begun there, removed or not.

    Returns their grid, None if there are none, and all that was noted of its beginnings.
    """
    folder, now = Path(settings.folder), _fixed(settings)
    earlier, noted = read_begun(folder)
    if earlier is not None and not any(run.training.folder.is_dir() for run in runs_of(earlier)):
        earlier = None
    before = noted[-1].declared if noted else {}
    if earlier is not None:
        before = _fixed(earlier) if earlier.is_declared else {}
        if settings.is_declared and not earlier.is_declared:
            why = "runs that were begun without a declaration: they stay exploratory"
            raise AblationError(f"{folder} holds {why}. Type folder=<another>")
    for key, value in before.items():
        # some of the declared seeds may be trained alone, as on another machine
        if value != now.get(key) and not (key == "seeds" and {*now[key]} < {*value}):
            said = f"{key}: {json.dumps(value)}, and now it is {json.dumps(now.get(key))}"
            fix = "valid is what it was. Write that, or type folder=<another>"
            raise AblationError(f"runs of {folder}, removed or not, were begun with {said}; {fix}")
    return earlier, noted


def _fixed(settings: GridSettings) -> dict[str, Any]:
    """What cannot change once a run has begun; of the seeds, those that verdicts may use."""
    fixed = {key: value for key, value in as_plain(settings).items() if key not in ("metrics", "seeds")}
    return fixed | {"seeds": settings.usable}
