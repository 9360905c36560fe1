"""What a report shows on the terminal, in Markdown and on the page alike, and its files."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from statistics import fmean

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from grpo_verl_ext.ablation.measures import CONFIDENCE, Paired, compare, interval
from grpo_verl_ext.ablation.results import CheckResult, Results, Verdict
from grpo_verl_ext.ablation.verdicts import control_of, figures, in_words, judge
from grpo_verl_ext.runs.provenance import CHANGED
from grpo_verl_ext.utils.documents import as_plain, numbers_as_text
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.plotting import drawn, looks

COLOURS: dict[str, str] = {
    **dict.fromkeys(("higher", "lower", "control shown"), "#00694a"),
    **dict.fromkeys(("blind", "not exercised", "control missed"), "#6b2d73"),
    **{"equal within the margin": "#00589b", "undecided": "#7a5200", "exploratory": "#57606a"},
}
"""Background of a statement's label; white has a contrast of more than 4.5 on each."""


@dataclass
class Report:
    """Everything that a report shows: the comparison of the finished runs."""

    results: Results
    judged: tuple[list[CheckResult], list[Verdict]] | None = None
    """The control with the manipulation checks, and the verdicts; None: as `judge` finds them."""

    def __post_init__(self) -> None:
        results, shown = self.results, self.results.settings.shown
        results.control = results.control or control_of(results.settings)
        self.checks, self.verdicts = self.judged or judge(results)
        self.missing = list[str]()
        """Metrics that no run has, or that end before the last step; a report begins with them."""
        keys = dict.fromkeys(results.settings.metrics, "metrics")
        keys |= {primary.metric: "primary"} if (primary := results.settings.primary) else {}
        keys |= {each.metric: f"checks[{index}]" for index, each in enumerate(results.settings.checks)}
        for metric, key in keys.items() if results.compared else ():
            for why, runs in results.missing[metric].items():
                fix = ". Type in base: trainer.test_freq=<steps between validations>" * why.startswith("ends")
                self.missing.append(f"{metric} {why.format(', '.join(runs))}: left out{fix}")
            if not results.curves[metric]:
                near = get_close_matches(metric, {*results.table["metric"]}, n=3, cutoff=0.4)
                like = f"; similar are {', '.join(near)}" if near else ""
                fix = "Type: 'metrics=[…]'" if key == "metrics" else "Correct it and type folder=<another>"
                self.missing.append(f"{key} has {metric}, which no run has logged{like}. {fix}")
        self.warnings = _warnings(results)
        verdicts = [(each.label, each.sentence) for each in self.verdicts]
        labels = {True: "control shown", False: "control missed"}
        controls = [(labels[each.passed], each.sentence) for each in self.checks if each.is_control]
        nothing = "no hypothesis was declared before the runs: take differences as hints"
        self.statements = verdicts or controls or [("exploratory", nothing)]
        """Label and sentence of each verdict, else of the control, else that nothing was declared."""
        self.differences: list[tuple[str, str, Paired]] = []
        """Name, variant and numbers of those of the verdicts; without any, of those from the baseline."""
        self.exploratory: list[str] = []
        """The differences in words, where no verdict says them."""
        for each in self.verdicts:
            measure = f", {each.of.removesuffix(f' of {shown.metric}')}" * (each.measure != shown.measure)
            self.differences.append((f"{each.variant} − {each.against}{measure}", each.variant, each))
        values, (base, *variants) = results.values[shown.metric, shown.measure], results.variants
        for variant in () if self.verdicts else variants:
            if found := compare(values[variant], values[base]):
                self.differences.append((f"{variant} − {base}", variant, found))
                self.exploratory.append(in_words(f"{variant} − {base}, {shown}", found))
        # A difference of differences is of no one variant, and looks like none.
        names = dict.fromkeys([*results.variants, *(variant for _, variant, _ in self.differences)])
        self.looks = {name: looks(number) for number, name in enumerate(names)}
        """Colour, mark and line style of each variant in the pictures."""

    @cached_property
    def tables(self) -> list[tuple[str, Sequence[str], list[list[str]]]]:
        """Title, columns and lines of the checks, where some were declared, and of the costs."""
        checks, costs, shown = list[list[str]](), list[list[str]](), self.results.settings.shown
        values = self.results.values[shown.metric, shown.measure]
        for check in self.checks:
            value = "–" if check.value is None else f"{check.value:.3g}".replace("-", "−")
            checks.append([check.name, check.variant, value, "passed" if check.passed else "missed"])
        for variant, of in self.results.costs.items():
            mean = figures(fmean(own.values())) if (own := values[variant]) else "–"
            took = [f"{of['seconds']:.0f}", f"{of['tokens']:.0f}", f"{of['memory_gb']:.2f}"]
            costs.append([variant, mean, *took])
        of_costs = (
            "variant",
            f"{shown}",
            "seconds of steps",
            "tokens of rollouts",
            "peak memory of the actor, GB",
        )
        of_checks = ("check", "variant", "value", "result")
        both = (("checks", of_checks, checks), ("means over seeds", of_costs, costs))
        return [each for each in both if each[2]]


def _warnings(results: Results) -> list[str]:
    """Files that cannot be read; runs that are unfinished, left out, of changed sources, or removed."""
    warnings = list(dict.fromkeys(warning for run in results.runs for warning in run.warnings))
    wanted, settings = results.seeds, results.settings
    unfinished = [run for run in results.asked_for if run.state != "finished"]
    finished = len(results.finished & {*wanted})
    beyond = len(results.finished & {*settings.usable}) - finished
    if settings.expect and finished < len(wanted):
        again = ". To finish them, run the same `ablate run` again" * bool(unfinished)
        of = f"{finished} of {len(wanted)} declared seeds"
        warnings.append(f"{of} are finished and compared: the verdicts are not final{again}")
    if settings.expect and beyond:
        more = f"{beyond} more are finished and not used"
        warnings.append(f"the declared rule asks for {len(wanted)} seeds: {more}")
    if unfinished:
        names = ", ".join(f"{run.name} ({run.state})" for run in unfinished)
        warnings.append(f"not finished, and left out: {names}")
    out, again = results.left_out.items(), "To train it again, move its folder away"
    warnings += [f"{variant}/seed-{seed} is left out: {why}. {again}" for (variant, seed), why in out]
    records = [run.record for run in results.compared if run.record is not None]
    if changed := sum(str(record.git_revision).endswith(CHANGED) for record in records):
        rests = "the verdicts rest on them" if settings.is_declared else "they show no finding"
        said = f"{changed} of {len(records)} runs were begun from a checkout that differs from its commit"
        warnings.append(f"{said}: what ran cannot be known, and {rests}")
    if (times := len(results.beginnings)) > 1:
        begun = "; ".join(f"{each.at} at commit {each.commit}" for each in results.beginnings)
        said = f"the grid was begun {times} times, and the records of all but the last were removed: {begun}"
        warnings.append(f"{said}. Its declaration was the same ({results.beginnings[0].declaration})")
    return warnings


def write_files(report: Report, folder: Path) -> list[Path]:
    """Write ``report.json``, which has everything, and ``report.md``, each whole or not at all."""
    results, begun = report.results, ("declaration", "commit", "at")
    content = {
        "statements": [{"label": label, "sentence": sentence} for label, sentence in report.statements],
        **{name: getattr(report, name) for name in ("verdicts", "checks", "missing", "warnings")},
        "settings": as_plain(results.settings),
        "beginnings": [{name: getattr(each, name) for name in begun} for each in results.beginnings],
        **{"rows": results.rows, "costs": results.costs},
    }
    write_whole(folder / "report.json", numbers_as_text(content))
    said = [f"**{label}**: {sentence}" for label, sentence in report.statements]
    parts = ["\n".join(f"- {line}" for line in lines) for lines in (report.missing, said, report.exploratory)]
    for title, columns, lines in report.tables:
        texts = [" | ".join(cell.replace("|", "\\|") for cell in cells) for cells in (columns, *lines)]
        head, *rows = (f"| {text} |" for text in texts)
        parts.append("\n".join([f"### {title}", "", head, "|" + "---|" * len(columns), *rows]))
    parts.append("\n".join(f"- {line}" for line in report.warnings))
    write_whole(folder / "report.md", "\n\n".join(part for part in parts if part) + "\n")
    return [folder / "report.json", folder / "report.md"]


def write_page(report: Report, folder: Path) -> Path:
    """Write the page, whole or not at all, with its pictures in it; values are escaped and made visible."""
    loader = PackageLoader("grpo_verl_ext", "ablation")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_visible)
    environment.trim_blocks = environment.lstrip_blocks = True
    uri = "data:image/svg+xml;base64,"
    environment.filters["picture"] = lambda figure: uri + base64.b64encode(drawn(figure, "svg")).decode()
    settings, legend = report.results.settings, {}
    for name in report.results.variants:
        legend[name] = Figure(figsize=(0.5, 0.16))
        line = Line2D([0.02, 0.5, 0.98], [0.5] * 3, markevery=[1], markersize=5, **report.looks[name])
        legend[name].add_artist(line)
    learnt = dict.fromkeys([settings.shown.metric, *settings.metrics])
    curves = {metric: learning_curves(report, metric) for metric in learnt}
    figures = {"forest": forest(report), "curves": curves, "legend": legend}
    records: dict[str, None] = {}  # what the runs were made with, each once
    for record in (run.record for run in report.results.runs if run.record is not None):
        versions = [f"{name} {version}" for name, version in record.versions.items()]
        made = [f"commit {record.git_revision or 'unknown'}", ", ".join(versions), record.machine]
        records["; ".join(each for each in made if each is not None)] = None
    level = 1 - settings.alpha if report.verdicts else CONFIDENCE
    template = environment.get_template("page.html.jinja")
    shown = {"report": report, "settings": settings, "records": records, "colours": COLOURS}
    page = template.render(**shown, grid=as_plain(settings), level=level, **figures)
    write_whole(folder / "report.html", page)
    return folder / "report.html"


def _visible(value: object) -> object:
    """In text, show control, direction, surrogate and private characters by code point, such as ⟨U+202E⟩."""
    if type(value) is not str:
        return value
    return "".join(each if each.isprintable() or each in "\n\t" else f"⟨U+{ord(each):04X}⟩" for each in value)


def learning_curves(report: Report, metric: str) -> Figure | None:
    """Thin lines for seeds, a thick line for their mean, a band for its 95 % interval; None without any."""
    found, curves = report.results.curves[metric], {}
    for variant in report.results.variants:
        own = {seed: curve for (name, seed), curve in found.items() if name == variant}
        if own and len(shared := pd.concat(own, axis=1, join="inner")):
            curves[variant] = shared  # at the steps that all seeds have
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")  # inches; readable on a phone
    axes = figure.subplots()
    for variant, seeds in curves.items():
        axes.plot(seeds, color=report.looks[variant]["color"], linewidth=0.6, alpha=0.5)
        axes.plot(seeds.mean(axis=1, skipna=False), markersize=4, **report.looks[variant])
    axes.set_ylim(axes.get_ylim())  # of the seeds; of few, the interval is wider and leaves it
    for variant, seeds in curves.items():
        *_, low, high = interval(seeds.to_numpy(), CONFIDENCE)
        colour = report.looks[variant]["color"]
        axes.fill_between(seeds.index, low, high, color=colour, alpha=0.07, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.set(xlabel="step")
    return figure if curves else None


def forest(report: Report) -> Figure | None:
    """Each difference with its interval and its seeds (hollow), over 0 and ±margin; None without any."""
    rows = report.differences
    if all(found.difference is None for *_, found in rows):
        return None
    figure = Figure(figsize=(4.6, 0.6 + 0.6 * len(rows)), layout="constrained")
    axes = figure.subplots()
    margin = report.results.settings.margin
    if report.verdicts and margin is not None:
        axes.axvspan(-margin, margin, color="#dfe3e8", linewidth=0)
    axes.axvline(0, color="#555555", linewidth=1)
    across = axes.get_yaxis_transform()  # x in parts of the width
    for place, (name, variant, found) in enumerate(rows):
        own = {**report.looks[variant], "linestyle": ""}
        axes.axhline(place + 0.45, color="#d5d9de", linewidth=0.5)
        axes.text(0.01, place - 0.27, name, transform=across, verticalalignment="center", in_layout=False)
        starts = [*found.by_seed.values()]
        axes.plot(starts, [place + 0.2] * len(starts), fillstyle="none", markersize=4, alpha=0.7, **own)
        if found.low is not None and found.high is not None:
            axes.plot([found.low, found.high], [place, place], linewidth=2, color=own["color"])
        if found.difference is not None:
            axes.plot([found.difference], [place], markersize=8, **own)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.55, -0.55)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(f"difference, {report.results.settings.shown}", wrap=True)
    return figure
