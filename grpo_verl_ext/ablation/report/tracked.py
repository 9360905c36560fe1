"""A report as one run of a tracker such as wandb: mean curves of the variants, and the verdicts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grpo_verl_ext.ablation.report.summary import Report
from grpo_verl_ext.ablation.statistics.verdicts import Verdict


@dataclass(frozen=True)
class Tracked:
    """What a tracker is given."""

    config: dict[str, Any]
    """The grid, and the sentences of the report."""
    rows: list[tuple[int, dict[str, float]]]
    """Steps in their order, with numbers by name; the last one also has the verdicts'."""


def tracked(report: Report) -> Tracked:
    """Return the mean over the seeds of each drawn metric, and the numbers of each verdict."""
    analysis = report.analysis
    settings = analysis.results.settings
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for metric, bands in analysis.curves.items():
        for band in bands:
            for step, summary in zip(band.steps, band.summaries, strict=True):
                rows[step][f"{metric}/{band.variant}"] = summary.mean
    last = rows[max(rows, default=settings.steps)]
    for verdict in analysis.verdicts:
        last.update(_numbers(verdict))
    said = [f"{each.label}: {each.sentence}" for each in report.statements] + report.exploratory
    config = {"grid": settings.as_dict(), "report": said}
    finite = {
        step: {name: value for name, value in row.items() if math.isfinite(value)}
        for step, row in rows.items()
    }
    return Tracked(config, sorted(finite.items()))


def _numbers(verdict: Verdict) -> Iterator[tuple[str, float]]:
    compared = f"{verdict.variant} − {verdict.against}"
    for name in ("difference", "low", "high", "p", "adjusted_p", "starts"):
        value = getattr(verdict, name)
        if value is not None:
            yield f"verdict/{compared}/{verdict.measure}/{name}", float(value)
