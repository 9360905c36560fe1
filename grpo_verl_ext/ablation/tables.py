"""The report's numbers as text, the same wherever they are shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_verl_ext.ablation.analysis import Analysis, Row

COLUMNS = (
    *("variant", "seeds", "mean ± std", "95 %"),
    *("difference", "95 % of it", "p, adjusted", "P(> 0)", "d_z", "wins"),
)
COST_COLUMNS = ("variant", "seconds of steps", "tokens trained on", "peak memory of the actor, GB")


@dataclass(frozen=True)
class TextTable:
    """A title, names of columns, lines of cells."""

    title: str
    columns: tuple[str, ...]
    lines: list[list[str]]


def comparisons(analysis: Analysis) -> Iterator[TextTable]:
    """A table for each metric and measure, the most important first."""
    baseline = analysis.results.baseline
    for metric, measure in dict.fromkeys((row.metric, row.measure) for row in analysis.rows):
        own = [row for row in analysis.rows if (row.metric, row.measure) == (metric, measure)]
        title = f"{metric}, {measure}; differences from {baseline}, paired by seed"
        yield TextTable(title, COLUMNS, [cells(row) for row in own])


def costs(analysis: Analysis) -> TextTable:
    """Means over the finished runs."""
    lines = [
        [variant, f"{of['seconds']:.0f}", f"{of['tokens']:.0f}", f"{of['memory_gb']:.2f}"]
        for variant, of in analysis.costs.items()
    ]
    return TextTable("what a run took, mean over seeds", COST_COLUMNS, lines)


def thresholds(analysis: Analysis) -> list[str]:
    """When each run's first metric reached the threshold, a line for each variant."""
    lines = []
    for variant, runs in analysis.reached.items():
        words = [
            f"seed {seed}: " + ("never" if step is None else f"step {step}, {seconds:.0f} s")
            for seed, step, seconds in runs
        ]
        lines.append(f"{variant} reached {analysis.threshold:g}: {'; '.join(words) or '–'}")
    return lines


def cells(row: Row) -> list[str]:
    """A row of `COLUMNS`."""
    summary, versus = row.summary, row.comparison
    spread = "" if summary.std is None else f" ± {summary.std:.3f}"
    mine = [
        row.variant,
        str(summary.seeds),
        f"{summary.mean:.3f}{spread}",
        _interval(summary.low, summary.high),
    ]
    if versus is None:
        return [*mine, *["–"] * 6]
    return [
        *mine,
        f"{versus.difference:+.3f}",
        _interval(versus.low, versus.high),
        _number(row.adjusted_p),
        _number(versus.probability_higher),
        _number(versus.effect),
        f"{versus.wins}/{versus.seeds}",
    ]


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:.3f} … {high:.3f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
