"""A finished run of verl's trainer, and its metrics."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_verl_ext.runs.metrics import Metrics


@dataclass
class Run:
    """A finished run: exit status, output, and verl's metrics by step."""

    status: int
    log: Path
    metrics: Metrics

    def require_success(self) -> "Run":
        assert self.status == 0, self.log.read_text(errors="replace")[-4000:]
        return self

    def series(self, key: str) -> list[float]:
        """Values of one metric in the order of steps."""
        return [values[key] for _, values in sorted(self.metrics.items()) if key in values]


Train = Callable[..., Run]
