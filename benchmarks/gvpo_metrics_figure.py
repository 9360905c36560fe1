"""Draw docs/gvpo_metrics.png: GVPO's metrics in trainings at three learning rates, from the kept results.

python benchmarks/gvpo_metrics_figure.py [FILE]
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_verl_ext.ablation.table import Results, read_table
from grpo_verl_ext.utils import plotting

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "examples/ablations/results/learning_rates_chain_sum/metrics.parquet"
FILE = ROOT / "docs" / "gvpo_metrics.png"
Logged = Mapping[str, Any]
"""Metric → its values by step."""
VARIANTS = {"gvpo-lr2e-4": "lr 2e-4", "gvpo-lr5e-4": "5e-4", "gvpo-lr1e-3": "1e-3, too high"}
PANELS: dict[str, Callable[[Logged], Any]] = {
    "gold_response/right": lambda logged: logged["gold_response/right"],
    "actor/gvpo_drift, nats": lambda logged: logged["actor/gvpo_drift"],
    # the share by which a step's updates have changed its loss
    "(var_term + cov_term) / reward_term": lambda logged: (
        (logged["actor/gvpo_var_term"] + logged["actor/gvpo_cov_term"]) / logged["actor/gvpo_reward_term"]
    ),
}


def plot(axes: Axes, results: Results, value: Callable[[Logged], Any]) -> None:
    """Draw one curve for each start of each variant."""
    for (variant, label), colour in zip(VARIANTS.items(), plotting.PALETTE, strict=False):
        rows = results.table[results.table["variant"] == variant]
        for number, (_, of_run) in enumerate(rows.groupby("seed", observed=True, sort=False)):
            logged = of_run.pivot(index="step", columns="metric", values="value")
            logged = logged[logged["actor/gvpo_drift"].notna()]
            axes.plot(logged.index, value(logged), color=colour, label=label if number == 0 else None)


def main() -> None:
    results = read_table(RESULTS)
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axes, (title, value) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        plot(axes, results, value)
        axes.set(xlabel="step", title=title)
        axes.title.set_size("medium")
    figure.axes[1].legend(frameon=False)
    figure.axes[-1].axhline(0, color="gray", linewidth=0.8)
    plotting.save_figure(figure, Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)


if __name__ == "__main__":
    main()
