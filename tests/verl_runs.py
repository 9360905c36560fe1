"""A finished run of verl's trainer, and its metrics."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Run:
    """A finished run: exit status, output, and verl's metrics by step."""

    status: int
    log: Path
    metrics: dict[int, dict[str, float]]

    def require_success(self) -> "Run":
        assert self.status == 0, self.log.read_text(errors="replace")[-4000:]
        return self

    def series(self, key: str) -> list[float]:
        """Values of one metric in the order of steps."""
        return [values[key] for _, values in sorted(self.metrics.items()) if key in values]


Train = Callable[..., Run]


def read_metrics(file: Path) -> dict[int, dict[str, float]]:
    """Metrics by step; verl writes one line per step, and one for the validation before training."""
    metrics: dict[int, dict[str, float]] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        record = json.loads(line)
        metrics.setdefault(record["step"], {}).update(record["data"])
    return metrics
