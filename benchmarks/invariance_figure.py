"""Draw docs/invariance.svg: how far each loss's gradient is off when the mini-batch is cut differently.

python benchmarks/invariance_figure.py [FILE]

The measurement is that of `grpo-verl-ext invariance --verl`, in float64.
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

from grpo_verl_ext.utils import plotting
from grpo_verl_ext.verl_plugin.invariance import OUR_CASES, VERL_CASES, Case, measure

FILE = Path(__file__).parents[1] / "docs" / "invariance.svg"
OURS, VERLS = plotting.COLOURS[:2]


def worst(case: Case) -> float:
    """The largest relative error of the gradient over all cuts, in percent."""
    return 100 * max(m.gradient_error for m in measure([case], [torch.float64]))


def draw(errors: dict[str, float]) -> Figure:
    """A bar for each loss, verl's above ours."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(list(errors), list(errors.values()))
    for bar, name in zip(bars, errors, strict=True):
        bar.set_color(VERLS if name.startswith("verl") else OURS)
    axes.bar_label(bars, [f"{error:.0f} %" for error in errors.values()], padding=4)
    axes.set(xlim=(0, 700), xlabel="largest relative error of the gradient over 18 cuts of one mini-batch, %")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    errors = {case.name: worst(case) for case in VERL_CASES if case.loss_mode == "vanilla"}
    for case in OUR_CASES:
        errors[f"ours {case.name}" + ", by definition" * case.split_dependent] = worst(case)
    for name, error in errors.items():
        print(f"{name:35} {error:.1e} %")
    plotting.save(draw(errors), Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)


if __name__ == "__main__":
    main()
