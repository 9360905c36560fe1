"""What a grid's runs have logged, as one table that is read and written, and every number of a report."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from grpo_verl_ext.ablation import grid, measures
from grpo_verl_ext.ablation.declaration import FEWEST, Comparison, GridSettings, Primary
from grpo_verl_ext.ablation.grid import AblationError, Beginning, Record, State
from grpo_verl_ext.runs.provenance import CHANGED
from grpo_verl_ext.utils.documents import Document, as_plain, parse_json
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.keys import key_of

STEP_SECONDS = "timing_s/step"
_COSTS = {
    "seconds": (STEP_SECONDS, "sum"),
    "tokens": ("perf/total_num_tokens", "sum"),
    "memory_gb": ("actor/perf/max_memory_allocated_gb", "max"),
}
"""What a run takes: its metric, and how that is added up over the steps."""
_COLUMNS = {"run": "category", "variant": "category", "seed": "int32", "step": "int32", "metric": "category"}
_COLUMNS |= {"value": "float64"}
_Run = tuple[str, int]  # variant, seed
_Values = dict[str, dict[int, float]]  # variant → seed → value


@dataclass(frozen=True)
class CheckResult:
    """A manipulation check of one variant, or the positive control."""

    name: str
    variant: str
    value: float | None
    """Mean over the variant's runs, or the control's difference; None: not measured."""
    passed: bool
    is_control: bool
    sentence: str


@dataclass(frozen=True)
class RunResult:
    """One run without its numbers, which are in the table."""

    variant: str
    seed: int
    state: State
    record: Record | None = None
    warnings: list[str] = field(default_factory=list)
    """Files that cannot be read, with paths relative to the grid's folder."""

    @property
    def name(self) -> str:
        """``<variant>/seed-<seed>``."""
        return f"{self.variant}/seed-{self.seed}"


Outcome = Literal["shown", "opposite", "equal within the margin", "undecided", "blind", "not exercised"]
"""Of a declared comparison; blind: the positive control was missed; not exercised: a manipulation check."""


@dataclass(frozen=True, kw_only=True)
class Verdict(Comparison, measures.Paired):
    """One declared comparison over the common seeds of its variants, with an interval of 1 − alpha."""

    adjusted_p: float | None = None
    """After Holm over all comparisons; of ``p_equal`` where ``expected`` is equal."""
    p_equal: float | None = None
    """Equivalence within ±margin."""
    starts_needed: int | None = None
    """Seeds with which a difference of ``margin`` is found with 80 %; None where the spread is unknown."""
    outcome: Outcome = "undecided"
    label: str = "undecided"
    """Higher, lower, equal within the margin, whatever was expected; or why it is none of them."""
    sentence: str = ""


@dataclass
class Results:
    """All runs of a grid: the one table from which statistics and reports are made."""

    settings: GridSettings
    runs: list[RunResult]
    table: pd.DataFrame
    """A row for each number that a run has logged: run, variant, seed, step, metric, value."""
    control: CheckResult | None = None
    """The control of another grid that ``control.grid`` names, once it is read; the table keeps it."""
    beginnings: list[Beginning] = field(default_factory=list)
    """When the first run of a declared grid began; more than one if records were removed."""

    def __post_init__(self) -> None:
        settings = self.settings
        self.variants = list(dict.fromkeys([settings.base_variant, *(run.variant for run in self.runs)]))
        """Names of the variants, the baseline first."""
        finished = {(run.variant, run.seed): run for run in self.runs if run.state == "finished"}
        self.left_out = _unlike_others({key: run.record for key, run in finished.items()}, settings)
        """(variant, seed) of each finished run that cannot be compared with the others → why."""
        self.compared = [run for key, run in finished.items() if key not in self.left_out]
        """The finished runs that are compared."""
        self.curves = defaultdict[str, dict[_Run, "pd.Series[float]"]](dict)
        """Metric → (variant, seed) → its values by step, in order, of each compared run that logged it."""
        runs = {run.name: (run.variant, run.seed) for run in self.compared}
        by_step = self.table.set_index("step").groupby(["metric", "run"], observed=True, sort=False)["value"]
        for (metric, name), curve in by_step:
            if name in runs:
                self.curves[metric][runs[name]] = curve
        self.costs, nothing = defaultdict[str, dict[str, float]](dict), pd.Series([0.0])
        """Of a run of each variant, mean over the finished ones: seconds of all steps, tokens, peak GB."""
        for variant, (cost, (metric, how)) in product(self.variants, _COSTS.items()):
            if own := [key for key in runs.values() if key[0] == variant]:
                logged = (self.curves[metric].get(key, nothing) for key in own)
                self.costs[variant][cost] = fmean(float(curve.agg(how)) for curve in logged)
        self.values = defaultdict[tuple[str, str], _Values](lambda: {name: {} for name in self.variants})
        """(metric, measure) → variant → seed → value, of each compared run whose curve is whole."""
        self.missing: dict[str, dict[str, list[str]]] = {}
        """Metric → why other runs are left out, with {} for them → their names."""
        for metric in {*settings.metrics, settings.shown.metric, *(each.metric for each in settings.checks)}:
            self.measure(metric)
        self.first_spread: tuple[float, int, int] | None = None
        """`spread` of the declared first seeds; None until all compared variants have finished them."""
        if settings.starts is not None and (primary := settings.primary) is not None:
            first, of = settings.seeds[: settings.starts.first], self.values[primary.metric, primary.measure]
            if all(seed in of[name] for name in settings.compared for seed in first):
                self.first_spread = self.spread(primary, settings.compared, first)
        self.asked_for = [run for run in self.runs if run.seed in self.seeds or run.state != "waiting"]
        """All runs but those of seeds that the declared rule does not use, unless they have begun."""
        ended = Counter(seed for name, seed in runs.values() if name in settings.compared)
        self.finished = {seed for seed, count in ended.items() if count == len(settings.compared)}
        """The seeds that the compared variants have all finished."""

    def measure(self, metric: str) -> None:
        """Measure what reaches the last step, at the steps that most have; a resumed run may lack some."""
        curves, last = self.curves[metric], self.settings.steps
        counted = Counter(step for curve in curves.values() for step in curve.index)
        usual = {step for step, count in counted.items() if 2 * count > len(curves)}
        reasons = self.missing[metric] = defaultdict(list)
        for run in self.compared if curves else ():
            curve = curves.get((run.variant, run.seed))
            if curve is None:
                reasons["is missing in {}"].append(run.name)
            elif curve.index[-1] < last:
                reasons[f"ends at step {curve.index[-1]} of {last} in {{}}"].append(run.name)
            elif lacking := sorted(usual - {*curve.index}):
                steps = ", ".join(map(str, lacking))
                reasons[f"lacks the steps {steps} in {{}}, which most runs have"].append(run.name)
            elif usual:
                for measure, value in measures.measured(curve[curve.index.isin(usual)]).items():
                    self.values[metric, measure][run.variant][run.seed] = value

    def spread(self, of: Primary, variants: Sequence[str], seeds: Sequence[int]) -> tuple[float, int, int]:
        """Return the SD of paired differences of the primary, its degrees of freedom and number of seeds.

        Only seeds that all variants have, without NaN, count; with fewer than two the SD is NaN.
        """
        values = [self.values[of.metric, of.measure][name] for name in variants]
        common = [seed for seed in seeds if all(math.isfinite(each.get(seed, math.nan)) for each in values)]
        degrees = max(0, len(values) - 1) * max(0, len(common) - 1)
        shared = np.array([[each[seed] for seed in common] for each in values])
        return float(measures.difference_sd(shared)) if degrees else math.nan, degrees, len(common)

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds that the declaration asks for: verdicts use no others, even finished ones.

        ``starts.first`` until these are finished; then what ``margin`` takes at 80 %, up to ``starts.most``,
        by a spread that is blind to the means. Finished runs alone decide, so that a kill changes nothing.
        """
        settings, starts, margin = self.settings, self.settings.starts, self.settings.margin
        if starts is None or margin is None:
            return settings.seeds
        count = starts.first
        if self.first_spread is not None:
            sd = self.first_spread[0] * settings.spread_factor
            count = measures.starts_needed(margin, sd, settings.level, count, starts.most)
        return settings.seeds[:count]

    def tested(self, comparison: Comparison) -> Verdict:
        """Test a comparison over the declared seeds that its variants have finished."""
        settings, weights = self.settings, comparison.weights
        every, taken = self.values[settings.shown.metric, comparison.measure], -(comparison.number or 0.0)
        terms = {
            seed: [taken, *(times * every[name][seed] for name, times in weights.items())]
            for seed in self.seeds
            if all(seed in every[name] for name in weights)
        }
        found = Verdict(**vars(comparison), **vars(measures.paired(terms, 1 - settings.alpha, FEWEST)))
        if found.p is None or settings.margin is None:
            return found
        differences = np.array([*found.by_seed.values()])
        p_equal = float(measures.p_of_equality(differences, settings.margin))
        needed = measures.starts_needed(settings.margin, float(differences.std(ddof=1)), settings.level)
        return replace(found, p_equal=p_equal, starts_needed=needed)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One for each metric, measure and variant that has finished runs with the metric, as plain values.

        ``versus_…`` is what `compare` gives, ``adjusted_p`` is after Benjamini–Hochberg over the variants of
        this metric and measure.
        """
        primary, baseline = self.settings.primary, self.settings.base_variant
        numbers: list[tuple[str, str]] = [(primary.metric, primary.measure)] if primary else []
        numbers += product(self.settings.metrics, ("final", "best", "area"))
        rows: list[dict[str, Any]] = []
        for metric, measure in dict.fromkeys(numbers):
            values, tested = self.values[metric, measure], []
            for variant, own in ((variant, own) for variant, own in values.items() if own):
                row = {"metric": metric, "measure": measure, "variant": variant, "seeds": len(own)}
                summary = map(float, measures.interval(np.array([*own.values()]), measures.CONFIDENCE))
                row |= zip(("mean", "std", "low", "high"), summary, strict=True)
                if variant != baseline and (versus := measures.compare(own, values[baseline])):
                    row |= {f"versus_{name}": each for name, each in vars(versus).items()}
                    del row["versus_by_seed"]
                rows.append(row | {"adjusted_p": None, "by_seed": own})
                tested += [rows[-1]] if row.get("versus_p") is not None else []
            corrected = stats.false_discovery_control([row["versus_p"] for row in tested]) if tested else ()
            for row, p in zip(tested, corrected, strict=True):
                row["adjusted_p"] = float(p)
        return rows


def _unlike_others(records: Mapping[_Run, Record | None], settings: GridSettings) -> dict[_Run, str]:
    """Return why a finished run is left out: another training than the grid's, or than it is compared with.

    A run is compared with the baseline's of the same seed, and those that remain within each declared
    comparison: versions, in a declared comparison commits, and model and data, unless the two variants choose
    them differently. A record of an earlier version, without any of them, is judged by its overrides alone.
    """
    known = {run: each for run, each in records.items() if each is not None and (each.inputs or each.began)}
    trainings = {(run.variant, run.seed): run.training for run in grid.runs_of(settings)}
    found = {}
    for run, record in records.items():
        reasons = []
        if record is None:
            reasons += ["it has no record, as other runs have"] if settings.is_declared and known else []
        elif {*record.overrides} != {*trainings[run].overrides} or record.steps != settings.steps:
            reasons.append("its overrides or steps are not those of the grid")
        if run in known and settings.is_declared and str(known[run].git_revision).endswith(CHANGED):
            reasons.append(f"its sources differed from their commit ({known[run].git_revision})")
        found[run] = "; ".join([*reasons, *_unlike(run, settings.base_variant, known, settings)])
    compared = [each.weights for each in (*settings.comparisons, settings.own_control) if each]
    pairs = [pair for variants in compared for pair in combinations(variants, 2)]
    for (one, other), seed in product(pairs, settings.seeds):
        if found.get((one, seed)) == found.get((other, seed)) == "":
            found[one, seed] = "; ".join(_unlike((one, seed), other, known, settings))
    return {run: why for run, why in found.items() if why}


def _unlike(run: _Run, variant: str, known: Mapping[_Run, Record], settings: GridSettings) -> Iterator[str]:
    """Say in what a run differs from that of the variant with the same seed."""
    record, other, of_other = known.get(run), known.get((variant, run[1])), f"{variant}/seed-{run[1]}"
    if record is None or other is None:
        return
    for name in sorted(record.versions.keys() | other.versions.keys()):
        one, another = (each.versions.get(name, "none") for each in (record, other))
        if one != another:
            yield f"it was made with {name} {one}, and {of_other} with {another}"
    commit, another = (str(each.git_revision).removesuffix(CHANGED) for each in (record, other))
    if settings.is_declared and commit != another:
        yield f"its commit is {commit}, and that of {of_other} {another}"
    chosen = {key_of(word) for word in {*settings.overrides[run[0]]} ^ {*settings.overrides[variant]}}
    if any(each.partition(".")[0] == "task" for each in chosen):
        return  # it chooses model and data together
    for key in sorted(record.inputs.keys() | other.inputs.keys()):
        hashes = {record.inputs.get(key), other.inputs.get(key)}
        is_chosen = any(file.startswith(each) for each in chosen for file in (*grid.STARTS, key))
        is_judged = not is_chosen and (None not in hashes or key.partition("[")[0] in grid.STARTS)
        if is_judged and len(hashes) > 1:
            yield f"its {key} differs from that of {of_other}"


TABLE = "metrics.parquet"
"""The table that a report writes; in a folder without ``grid.json`` it is what is read."""
_ABOUT = "ablation"  # key of the file's metadata


def read_results(folder: Path) -> Results:
    """Read a grid's folder, which may have been moved, or the table that a report wrote."""
    table = folder if folder.is_file() else folder / TABLE
    if table.is_file() and not (folder / grid.GRID).exists():
        return read_table(table)
    (settings, beginnings), found, rows = grid.read_begun(folder), [], []
    if settings is None:
        raise AblationError(f"{folder} has no {grid.GRID}; valid is a folder that `ablate run` has begun")
    for run in grid.runs_of(settings):
        status, record = run.status(), None
        unread = status.reason if status.state == "unreadable" else None
        if status.state == "finished":
            try:
                record = run.record()
            except AblationError as error:
                unread = str(error)
        # the folder may be moved, and reports are shown to others
        warnings = [unread.replace(f"{settings.folder}/", "")] if unread else []
        found.append(RunResult(run.variant, run.seed, status.state, record, warnings))
        for step, logged in sorted(status.metrics.items()):
            rows += [(run.name, run.variant, run.seed, step, *each) for each in logged.items()]
    data = pd.DataFrame(rows, columns=[*_COLUMNS]).astype(_COLUMNS)
    return Results(settings, found, data, beginnings=beginnings)


@dataclass(frozen=True)
class _About(Document):
    """What the file of a table has besides its rows."""

    grid: GridSettings
    runs: list[RunResult]
    control: CheckResult | None
    beginnings: list[Beginning]


def write_table(results: Results, file: Path) -> Path:
    """Write the table as Parquet, whole or not at all, with grid and records: all that a report reads."""
    about = _About(results.settings, results.runs, results.control, results.beginnings)
    table, written = pa.Table.from_pandas(results.table, preserve_index=False), pa.BufferOutputStream()
    with pq.ParquetWriter(
        written, table.schema, compression="zstd", compression_level=19, store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_ABOUT: json.dumps(as_plain(about))})
    write_whole(file, written.getvalue().to_pybytes())
    return file


def read_table(file: Path) -> Results:
    """Read what `write_table` wrote."""
    try:
        content = pq.read_table(file, read_dictionary=["run", "variant", "metric"])
        about = parse_json((content.schema.metadata or {}).get(_ABOUT.encode(), b""), _About)
        table = content.to_pandas()[[*_COLUMNS]].astype(_COLUMNS)
        settings = grid.checked(replace(about.grid, folder=str(file.parent)))
        names = [run.name for run in about.runs]
        if names != [run.name for run in grid.runs_of(settings)] or not {*table["run"].unique()} <= {*names}:
            raise ValueError("its runs or rows are not those of its grid")
        return Results(settings, about.runs, table, about.control, about.beginnings)
    except (ValueError, TypeError, LookupError, OverflowError, OSError, pa.ArrowException) as error:
        why = f"is not a table that `ablate report` wrote ({error})"
        raise AblationError(f"{file} {why}. It was left in place") from error
