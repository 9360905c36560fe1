"""What a report shows on the terminal, in Markdown and on the page alike, and its files.

First a statement for each declared comparison, or that nothing was declared; then the differences, which are
also the rows of the forest plot; then the checks and the costs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from grpo_verl_ext.ablation.declaration import Primary
from grpo_verl_ext.ablation.measures import (
    Paired,
    compare,
    costs_of,
    curves_of,
    report_rows,
    steps_of_most,
    values_of,
)
from grpo_verl_ext.ablation.power import finished_starts, seeds_by_rule
from grpo_verl_ext.ablation.state import State
from grpo_verl_ext.ablation.table import TABLE, CheckResult, Results, RunResult, write_table
from grpo_verl_ext.ablation.verdicts import Verdict, control_of, in_words, judge
from grpo_verl_ext.runs.provenance import CHANGED
from grpo_verl_ext.utils.documents import numbers_as_text
from grpo_verl_ext.utils.files import write_whole


@dataclass(frozen=True)
class Report:
    """Everything that a report shows."""

    results: Results
    rows: list[dict[str, Any]]
    """The result of `report_rows`."""
    costs: dict[str, dict[str, float]]
    missing: list[str]
    """Metrics that no run has, or that end before the last step; a report begins with them."""
    warnings: list[str]
    verdicts: list[Verdict] = field(default_factory=list)
    """One for each declared comparison; empty without a declaration."""
    checks: list[CheckResult] = field(default_factory=list)
    """The positive control and the manipulation checks; empty without a declaration."""

    @property
    def statements(self) -> list[tuple[str, str]]:
        """Label and sentence of each verdict, else of the control, else that nothing was declared."""
        verdicts = [(each.outcome.value, each.sentence) for each in self.verdicts]
        controls = [
            ("control shown" if each.passed else "control missed", each.sentence)
            for each in self.checks
            if each.is_control
        ]
        nothing = "nothing was declared before the runs, so nothing here is a finding"
        return verdicts or controls or [("exploratory", nothing)]

    @property
    def asked_for(self) -> list[RunResult]:
        """All runs but those of seeds that the declared rule does not use, unless they have begun."""
        return _runs_asked_for(self.results)

    @property
    def compared(self) -> Primary:
        """The number whose differences are shown: the primary, else the area of the first metric."""
        return self.results.settings.primary or Primary(self.results.settings.metrics[0], "area")

    @property
    def differences(self) -> list[tuple[str, str, Paired]]:
        """Name, variant and numbers of those of the verdicts; without any, of those from the baseline."""
        if self.verdicts:
            return [
                (
                    f"{each.variant} − {each.against}"
                    + f", {each.measure}" * (each.measure != self.compared.measure),
                    *(each.variant, each),
                )
                for each in self.verdicts
            ]
        values, base = (
            values_of(self.results, self.compared.metric, self.compared.measure),
            self.results.variants[0],
        )
        against_base = {
            variant: compare(values[variant], values[base]) for variant in self.results.variants[1:]
        }
        return [(f"{variant} − {base}", variant, found) for variant, found in against_base.items() if found]

    @property
    def exploratory(self) -> list[str]:
        """The differences in words, where no verdict says them."""
        return [
            in_words(f"{name}, {self.compared}", found)
            for name, _, found in ([] if self.verdicts else self.differences)
        ]

    @property
    def tables(self) -> list[tuple[str, tuple[str, ...], list[list[str]]]]:
        """Title, columns and lines of the checks, where some were declared, and of the costs."""
        checks = [
            [
                *(check.name, check.variant),
                "–" if check.value is None else f"{check.value:.3g}".replace("-", "−"),
                "passed" if check.passed else "missed",
            ]
            for check in self.checks
        ]
        costs = [
            [variant, f"{of['seconds']:.0f}", f"{of['tokens']:.0f}", f"{of['memory_gb']:.2f}"]
            for variant, of in self.costs.items()
        ]
        of_costs = ("variant", "seconds of steps", "tokens trained on", "peak memory of the actor, GB")
        found = [
            ("checks", ("check", "variant", "value", "result"), checks),
            ("what a run took, mean over seeds", of_costs, costs),
        ]
        return [each for each in found if each[2]]


def report_of(results: Results) -> Report:
    """Compare the finished runs, and put together what is shown of them."""
    results = replace(results, control=results.control or control_of(results.settings))
    checks, verdicts = judge(results)
    return Report(
        results=results,
        rows=report_rows(results),
        costs=costs_of(results),
        missing=_missing(results),
        warnings=_warnings(results),
        verdicts=verdicts,
        checks=checks,
    )


def _runs_asked_for(results: Results) -> list[RunResult]:
    wanted = seeds_by_rule(results)
    return [run for run in results.runs if run.seed in wanted or run.state is not State.WAITING]


def _warnings(results: Results) -> list[str]:
    """Files that cannot be read; runs that are unfinished, left out, of changed sources, or removed."""
    warnings = list(dict.fromkeys(warning for run in results.runs for warning in run.warnings))
    wanted, settings = seeds_by_rule(results), results.settings
    unfinished = [run for run in _runs_asked_for(results) if run.state is not State.FINISHED]
    finished = finished_starts(results, wanted)
    beyond = finished_starts(results, settings.usable) - finished
    if settings.expect and finished < len(wanted):
        again = ". To finish them, run the same `ablate run` again" * bool(unfinished)
        are = f"{finished} of {len(wanted)} declared starts are finished and compared"
        warnings.append(f"{are}: the verdicts are not final{again}")
    if settings.expect and beyond:
        asks = f"the declared rule asks for {len(wanted)} starts"
        warnings.append(f"{asks}: {beyond} more are finished and not used")
    if unfinished:
        names = ", ".join(f"{run.name} ({run.state.value})" for run in unfinished)
        warnings.append(f"not finished, and left out: {names}")
    warnings += [
        f"{variant}/seed-{seed} is left out: {why}. To train it again, move its folder away"
        for (variant, seed), why in results.left_out.items()
    ]
    records = [run.record for run in results.compared if run.record is not None]
    if changed := sum(str(record.git_revision).endswith(CHANGED) for record in records):
        rests = "the verdicts rest on them" if settings.is_declared else "they show no finding"
        warnings.append(
            f"{changed} of {len(records)} runs were begun from a checkout that differs from its commit: what "
            f"ran cannot be known, and {rests}"
        )
    if len(results.beginnings) > 1:
        begun = "; ".join(f"{each.at} at commit {each.commit}" for each in results.beginnings)
        warnings.append(
            f"the grid was begun {len(results.beginnings)} times, and the records of all but the last were "
            f"removed: {begun}. Its declaration was the same ({results.beginnings[0].declaration})"
        )
    return warnings


def _missing(results: Results) -> list[str]:
    """Name the metrics, also of a declaration, that no finished run has, and curves that are not whole."""
    settings, last, found = results.settings, results.settings.steps, []
    keys = dict.fromkeys(settings.metrics, "metrics")
    keys |= {settings.primary.metric: "primary"} if settings.primary else {}
    keys |= {check.metric: f"checks[{index}]" for index, check in enumerate(settings.checks)}
    for metric, key in keys.items() if results.compared else ():
        curves = curves_of(results, metric)
        usual, runs = steps_of_most(curves), defaultdict(list)
        for run in results.compared if curves else ():
            curve = curves.get((run.variant, run.seed))
            if curve is None:
                runs["is missing in {}"].append(run.name)
            elif curve.index[-1] < last:
                runs[f"ends at step {curve.index[-1]} of {last} in {{}}"].append(run.name)
            elif lacking := sorted(usual - {*curve.index}):
                steps = ", ".join(map(str, lacking))
                runs[f"lacks the steps {steps} in {{}}, which most runs have"].append(run.name)
        for why, names in runs.items():
            validate = ". Type in base: trainer.test_freq=<steps between validations>" * why.startswith(
                "ends"
            )
            found.append(f"{metric} {why.format(', '.join(names))}: left out{validate}")
        if not curves:
            near = get_close_matches(metric, {*results.table["metric"]}, n=3, cutoff=0.4)
            like = f"; like it are {', '.join(near)}" if near else ""
            fix = "Type: 'metrics=[…]'" if key == "metrics" else "Correct it and type folder=<another>"
            found.append(f"{key} has {metric}, which no run has logged{like}. {fix}")
    return found


def write_files(report: Report, folder: Path) -> list[Path]:
    """Write ``report.json``, ``report.md`` and ``metrics.parquet``, each whole or not at all.

    ``report.json`` has everything, with the values by seed; ``metrics.parquet`` all that the report was made
    from: see `write_table`.
    """
    content = {
        "statements": [{"label": label, "sentence": sentence} for label, sentence in report.statements],
        **{name: getattr(report, name) for name in ("verdicts", "checks", "missing", "warnings")},
        "settings": report.results.settings.as_dict(),
        "beginnings": [
            {"declaration": each.declaration, "commit": each.commit, "at": each.at}
            for each in report.results.beginnings
        ],
        **{"rows": report.rows, "costs": report.costs},
    }
    write_whole(folder / "report.json", numbers_as_text(content))
    write_whole(folder / "report.md", _as_markdown(report))
    written = write_table(report.results, folder / TABLE)
    return [folder / "report.json", folder / "report.md", written]


def _as_markdown(report: Report) -> str:
    """What is missing, the statements, the differences of an exploratory grid, tables, warnings."""
    said = [f"**{label}**: {sentence}" for label, sentence in report.statements]
    parts = ["\n".join(f"- {line}" for line in lines) for lines in (report.missing, said, report.exploratory)]
    for title, columns, lines in report.tables:
        head, *rows = (
            "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
            for cells in (columns, *lines)
        )
        parts.append("\n".join([f"### {title}", "", head, "|" + "---|" * len(columns), *rows]))
    parts.append("\n".join(f"- {line}" for line in report.warnings))
    return "\n\n".join(part for part in parts if part) + "\n"
