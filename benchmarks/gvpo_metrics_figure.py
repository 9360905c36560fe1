"""Draw docs/gvpo_metrics.png: GVPO's metrics in trainings at three learning rates, from the kept results.

python benchmarks/gvpo_metrics_figure.py [FILE]
"""

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_verl_ext.ablation.results import Results, read_table
from grpo_verl_ext.utils import plotting

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "examples/ablations/results/learning_rates_chain_sum/metrics.parquet"
FILE = ROOT / "docs" / "gvpo_metrics.png"
VARIANTS = {"gvpo-lr2e-4": "lr 2e-4", "gvpo-lr5e-4": "5e-4", "gvpo-lr1e-3": "1e-3, too high"}
PANELS = ("gold_response/right", "actor/gvpo_drift", "(var_term + cov_term) / reward_term")
"""The last one is the share by which a step's updates have changed its loss."""


def plot(axes: Axes, results: Results, panel: str) -> None:
    """Draw one curve for each start of each variant."""
    for (variant, label), colour in zip(VARIANTS.items(), plotting.PALETTE, strict=False):
        rows = results.table[results.table["variant"] == variant]
        for number, (_, of_run) in enumerate(rows.groupby("seed", observed=True, sort=False)):
            logged = of_run.pivot(index="step", columns="metric", values="value")
            logged = logged[logged["actor/gvpo_drift"].notna()]
            terms = logged["actor/gvpo_var_term"] + logged["actor/gvpo_cov_term"]
            logged[PANELS[-1]] = terms / logged["actor/gvpo_reward_term"]
            axes.plot(logged.index, logged[panel], color=colour, label=label if number == 0 else None)


def main() -> None:
    results = read_table(RESULTS)
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        plot(axes, results, panel)
        axes.set(xlabel="step", title=panel + ", nats" * panel.endswith("drift"))
        axes.title.set_size("medium")
    figure.axes[1].legend(frameon=False)
    figure.axes[-1].axhline(0, color="gray", linewidth=0.8)
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    file.write_bytes(plotting.drawn(figure, file.suffix[1:]))


if __name__ == "__main__":
    main()
