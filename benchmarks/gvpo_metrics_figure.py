"""Draw docs/gvpo_metrics.png: GVPO's metrics in trainings at three learning rates, from the kept results.

python benchmarks/gvpo_metrics_figure.py [FILE]
"""

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_verl_ext.ablation.compact import read_any
from grpo_verl_ext.ablation.results import Results
from grpo_verl_ext.utils import plotting

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "examples/ablations/results/learning_rates_chain_sum"
FILE = ROOT / "docs" / "gvpo_metrics.png"
VARIANTS = {"gvpo-lr2e-4": "lr 2e-4", "gvpo-lr5e-4": "5e-4", "gvpo-lr1e-3": "1e-3, too high"}
PANELS = {
    "gold_response/right": "right on held-out prompts",
    "actor/gvpo_drift": "actor/gvpo_drift, nats",
    "net": "(var_term + cov_term) / reward_term",
}


def values(logged: dict[str, float], panel: str) -> float:
    """Return a step's value; `net` is the share by which its updates have changed the loss."""
    if panel != "net":
        return logged[panel]
    moved = logged["actor/gvpo_var_term"] + logged["actor/gvpo_cov_term"]
    return moved / logged["actor/gvpo_reward_term"]


def plot(axes: Axes, results: Results, panel: str) -> None:
    """Draw one curve for each start of each variant."""
    for (variant, label), colour in zip(VARIANTS.items(), plotting.COLOURS, strict=False):
        for number, run in enumerate(run for run in results.runs if run.variant == variant):
            steps = sorted(step for step in run.metrics if "actor/gvpo_drift" in run.metrics[step])
            curve = [values(run.metrics[step], panel) for step in steps]
            axes.plot(steps, curve, color=colour, label=label if number == 0 else None)
    axes.set(xlabel="step", title=PANELS[panel])
    axes.title.set_size("medium")


def main() -> None:
    results, _ = read_any(RESULTS)
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        plot(axes, results, panel)
    figure.axes[1].legend(frameon=False)
    figure.axes[-1].axhline(0, color="gray", linewidth=0.8)
    plotting.save(figure, Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)


if __name__ == "__main__":
    main()
