"""Draw docs/invariance.svg: how far each loss's gradient is off when the mini-batch is split differently.

python benchmarks/invariance_figure.py [FILE]

The measurement is that of `grpo-verl-ext invariance --verl`, in float64.
"""

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import torch
from matplotlib.figure import Figure

from grpo_verl_ext.proof import invariance
from grpo_verl_ext.utils import plotting

FILE = Path(__file__).parents[1] / "docs" / "invariance.svg"
OWNERS = {"verl": invariance.VERL_CASES, "ours": (*invariance.OUR_CASES, *invariance.PRESET_CASES)}
EXACT = 100 * invariance.TOLERANCE[torch.float64]
Errors = dict[str, float]  # loss → largest relative error of its gradient over all cuts, in percent


def worst(cases: Iterable[invariance.Case]) -> Errors:
    """Measure each loss; the largest error comes first."""
    errors: Errors = {}
    for case in cases:
        name = case.name.removeprefix("verl ") + ", by definition" * case.split_dependent
        found = invariance.measure([case], [torch.float64])
        errors[name] = 100 * max(each.gradient_error for each in found)
    return dict(sorted(errors.items(), key=lambda item: -item[1]))


def draw(errors: dict[str, Errors]) -> Figure:
    """Draw a bar for each loss that depends on the cut, and for each owner a line that names all others."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for owner, own in errors.items():
        depending = {f"{owner}: {name}": error for name, error in own.items() if error > EXACT}
        bars = axes.barh(list(depending), list(depending.values()), color=plotting.PALETTE[owner == "verl"])
        axes.bar_label(bars, [f"{error:.0f} %" for error in depending.values()], padding=4)
        row = f"{owner}: {len(own) - len(depending)} others"
        axes.barh([row], [0])
        names = sorted(name.replace(" ", "\xa0") for name, error in own.items() if error <= EXACT)
        listed = textwrap.fill("0 %:  " + "\xa0· ".join(names), 92)
        axes.annotate(listed, (0, row), (4, 0), textcoords="offset points", va="center", fontsize=7)
    highest = max(error for own in errors.values() for error in own.values())
    axes.set_xlim(0, 1.15 * highest)
    axes.set_xlabel("largest relative error of the gradient over 18 splits of one mini-batch, %")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    torch.manual_seed(0)  # verl's clip_cov draws tokens
    errors = {owner: worst(cases) for owner, cases in OWNERS.items()}
    for owner, own in errors.items():
        for name, error in own.items():
            print(f"{owner} {name:35} {error:.1e} %")
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    file.write_bytes(plotting.drawn(draw(errors), file.suffix[1:]))


if __name__ == "__main__":
    main()
