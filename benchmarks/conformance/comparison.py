"""Three numbers for each row and reference: dependence on the cut, distance to the paper, best-fit scale."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.conformance.batch import REWARDS, Batch, Floats
from benchmarks.conformance.oracle import ALGORITHMS, ESTIMATORS, kl
from grpo_verl_ext.utils.measured import largest

EXACT = 1e-6
"""Largest error that float32 inside a framework explains; a wrong denominator is wrong by per cents."""

EPSILON = 1e-5
"""Largest distance of advantages that an ε of 1e-6 beside a divisor of 0.2 or more explains."""

Gradients = dict[str, Floats]
"""``"row/batch/cut"`` → ∂L/∂log π, (B, T)."""


@dataclass(frozen=True)
class Cell:
    """One row of a framework against one reference.

    Attributes:
        error: max |g − g_whole| / max |g_whole| over cuts and ranks; g_whole: one micro-batch on one rank.
        Infinite with NaN, with g_whole = 0, and where there is no other cut.
        worst_cut: where: micro-batches × ranks.
        distance: max |g_whole − paper| / max |paper|.
        scale: s that minimises |g_whole − s·paper|²; a distance of |s − 1| is a constant, not another
        direction.
    """

    error: float
    worst_cut: str
    distance: float
    scale: float


def averaged(ranks: list[Gradients]) -> Gradients:
    """Return the mean over ranks, as DDP, FSDP and DeepSpeed take it."""
    return {key: sum((rank[key] for rank in ranks[1:]), ranks[0][key]) / len(ranks) for key in ranks[0]}


def cells(
    row: int, algorithm: str, batches: dict[str, Batch], found: dict[int, Gradients]
) -> dict[str, dict[str, Any]]:
    """Return ``"batch/reading"`` → `Cell` as a dictionary.

    Args:
        row: its index in the adapter.
        found: number of ranks → gradients of the mini-batch.
    """
    answers = {}
    for kind, batch in batches.items():
        own = {
            f"{key.rsplit('/', 1)[1]} × {world_size}": gradient
            for world_size, gradients in found.items()
            for key, gradient in gradients.items()
            if key.startswith(f"{row}/{kind}/")
        }
        if own:
            for reading, paper in references(algorithm, kind, batch).items():
                answers[f"{kind}/{reading}"] = asdict(cell(own, paper))
    return answers


def references(algorithm: str, kind: str, batch: Batch) -> dict[str, Floats]:
    """Return the papers' answers for one batch, by reading."""
    if kind == "kl":
        return {"paper": kl(batch)}
    return {
        reading: ALGORITHMS[algorithm].gradient(reading, batch) for reading in ALGORITHMS[algorithm].readings
    }


def cell(own: dict[str, Floats], paper: Floats) -> Cell:
    """Compare the gradients of all cuts with ``own["whole × 1"]``, and that one with the paper's."""
    reference = own["whole × 1"]
    errors = {
        cut: largest([relative_error(gradient, reference)])
        for cut, gradient in own.items()
        if gradient is not reference
    }
    worst = max(errors, key=lambda cut: errors[cut], default="no other cut")
    return Cell(
        error=errors.get(worst, math.inf),
        worst_cut=worst,
        distance=relative_error(reference, paper),
        scale=float((reference * paper).sum() / (paper * paper).sum()),
    )


def estimator_cell(advantages: list[float], algorithm: str) -> dict[str, float]:
    """Return distance and scale of advantages, one per response, against the paper's."""
    found, paper = np.array(advantages), ESTIMATORS[algorithm][1](REWARDS)
    return {
        "distance": relative_error(found, paper),
        "scale": float((found * paper).sum() / (paper * paper).sum()),
    }


def relative_error(found: Floats, expected: Floats) -> float:
    """max |found − expected| / max |expected|; NaN if one of them has it, or ``expected`` is 0."""
    scale = np.abs(expected).max()
    return float(np.abs(found - expected).max() / scale) if scale else math.nan


def failures(frameworks: dict[str, dict[str, Any]]) -> list[str]:
    """Return what makes a table untrustworthy: numbers that are missing, a control that passes, a known bug
    that is not found or is back, a row of ours that is not exact.
    """
    wrong = [] if frameworks else ["no framework was measured"]
    for name, framework in frameworks.items():
        if not framework["rows"]:
            wrong.append(f"{name}: no row was measured")
        for row in framework["rows"]:
            fault = _fault(row, ours=name == "grpo_verl_ext")
            wrong += [f"{name}, {row['settings']}: {fault}"] if fault else []
        for row in framework["estimators"]:
            distance = row["cell"]["distance"]
            if not distance <= (EPSILON if name == "grpo_verl_ext" else math.inf):
                wrong.append(f"{name}, {row['settings']}: advantages differ from the paper ({distance:.1e})")
    return wrong


_CONTROL_PASSES = "a failing control, but it does not depend on the cut"


def _fault(row: dict[str, Any], *, ours: bool) -> str:
    first = row["cells"].get("ragged/" + next(iter(ALGORITHMS[row["algorithm"]].readings)))
    if first is None:
        return "no gradient was measured"
    if first.get("scale") == 0:
        return "its gradient is 0: the loss is a constant"
    for kind, cell in row["cells"].items():
        if not all(math.isfinite(number) for number in cell.values() if isinstance(number, float)):
            return f"{kind} has NaN, no gradient, or no other cut than the whole"
    bug = row["bug"]
    if row["control"] and first["error"] <= EXACT:
        return f"the known bug {bug} is not found" if bug else _CONTROL_PASSES
    error = largest(cell["error"] for cell in row["cells"].values())
    if bug and not row["control"] and error > EXACT:
        return f"the known bug {bug} is there again ({error:.1e})"
    return f"depends on the cut ({error:.1e})" if ours and not row["control"] and error > EXACT else ""


def drift(framework: dict[str, Any], kept: dict[str, Any] | None, version: str) -> list[str]:
    """Return how a framework differs from the one tested: version, sources, lines that we stand in for."""
    changes = []
    if framework["version"] != version:
        changes.append(f"is {framework['version']}, {version} was tested")
    changes += [
        f"{s['file']} has no line “{s['line']}”" for s in framework["stand_ins"] if not s["line_number"]
    ]
    if kept is not None:
        changed = [
            file for file, digest in framework["sha256"].items() if kept["sha256"].get(file, digest) != digest
        ]
        changes += [f"{file} has changed" for file in changed]
    return changes
