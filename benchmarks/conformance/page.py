"""Write docs/conformance.md from the kept results."""

from __future__ import annotations

from typing import Any

from benchmarks.conformance.comparison import EXACT
from benchmarks.conformance.frameworks import FRAMEWORKS
from benchmarks.conformance.oracle import ALGORITHMS, ESTIMATORS

COMMAND = "python -m benchmarks.conformance"
KINDS = {"ragged": "{}", "masked": "{}, one masked", "kl": "KL term"}


def page(results: dict[str, Any]) -> str:
    """Return the page, Markdown."""
    frameworks = results["frameworks"]
    parts = [INTRODUCTION.format(command=COMMAND, date=results["date"])]
    parts += [algorithm_section(name, frameworks) for name in ALGORITHMS]
    parts.append(estimators(frameworks))
    parts += [CONTROLS.format(controls=controls(frameworks)), known_bugs(frameworks)]
    parts += [versions(frameworks), stand_ins(frameworks)]
    return "\n".join(parts)


def algorithm_section(algorithm: str, frameworks: dict[str, Any]) -> str:
    """Return the table of one algorithm, with a list of notes below it."""
    columns = [
        f"{kind}/{reading}" for reading in ALGORITHMS[algorithm].readings for kind in ("ragged", "masked")
    ]
    if algorithm == "grpo":
        columns.append("kl/paper")
    header = ["framework", "settings", *(title(column) for column in columns), "worst cut"]
    lines = [f"## {ALGORITHMS[algorithm].title}", "", joined(header), joined(["---"] * len(header))]
    notes = []
    for framework in frameworks.values():
        rows = [row for row in framework["rows"] if row["algorithm"] == algorithm and not row["bug"]]
        for row in rows:
            found = [numbers(row["cells"].get(column), framework) for column in columns]
            lines.append(joined([framework["title"], f"`{row['settings']}`", *found, worst_cut(row)]))
            if row["note"]:
                notes.append(f"- {framework['title']}, `{row['settings']}`: {row['note']}.")
        if not rows and algorithm in framework["no_mode"]:
            lines.append(joined([framework["title"], "no such mode", *[""] * (len(columns) + 1)]))
            notes.append(f"- {framework['title']}: {framework['no_mode'][algorithm]}.")
    return "\n".join([*lines, "", *notes, *([""] if notes else [])])


def estimators(frameworks: dict[str, Any]) -> str:
    """Return the table of advantages, with a list of notes below it."""
    lines = [ESTIMATORS_TEXT, joined(["algorithm", "framework", "settings", "distance · scale"])]
    lines.append(joined(["---"] * 4))
    notes = []
    for name, (algorithm, _) in ESTIMATORS.items():
        for framework in frameworks.values():
            for row in (row for row in framework["estimators"] if row["algorithm"] == name):
                cell = f"{short(row['cell']['distance'])} · {row['cell']['scale']:.3g}"
                lines.append(joined([algorithm, framework["title"], f"`{row['settings']}`", cell]))
                if row["note"]:
                    notes.append(f"- {framework['title']}, `{row['settings']}`: {row['note']}.")
    return "\n".join([*lines, "", *notes, ""])


def title(column: str) -> str:
    """Return a column's head."""
    kind, reading = column.split("/")
    return KINDS[kind].format(reading)


def numbers(cell: dict[str, Any] | None, framework: dict[str, Any]) -> str:
    """Return error · distance · scale."""
    if cell is None:
        return "no such mode" if not framework["has_k3_loss"] else ""
    return f"{short(cell['error'])} · {short(cell['distance'])} · {cell['scale']:.3g}"


def short(value: float) -> str:
    """Return two digits; 0 for what rounding explains."""
    return "0" if value <= EXACT else f"{value:.2g}"


def worst_cut(row: dict[str, Any]) -> str:
    """Return where the largest error of a row is, if there is one."""
    cell = max(row["cells"].values(), key=lambda cell: cell["error"])
    return cell["worst_cut"] if cell["error"] > EXACT else ""


def controls(frameworks: dict[str, Any]) -> str:
    """Return the failing controls with their errors."""
    return "; ".join(
        f"{framework['title']} `{row['settings']}` {short(next(iter(row['cells'].values()))['error'])}"
        for framework in frameworks.values()
        for row in framework["rows"]
        if row["control"] and not row["bug"]
    )


def known_bugs(frameworks: dict[str, Any]) -> str:
    """Return the rows of versions with a known bug and of those that are mended."""
    header = ["framework", "settings", "bug", "whole mini-batch", "one masked", "worst cut"]
    lines = [KNOWN_BUGS, joined(header), joined(["---"] * len(header))]
    for framework in frameworks.values():
        for row in (row for row in framework["rows"] if row["bug"]):
            reading = next(iter(ALGORITHMS[row["algorithm"]].readings))
            found = [numbers(row["cells"][f"{kind}/{reading}"], framework) for kind in ("ragged", "masked")]
            lines.append(
                joined(
                    [
                        f"{framework['title'].split()[0]} {framework['version']}",
                        f"`{row['settings']}`",
                        f"[{row['bug'].partition('/')[2]}]({link(row['bug'])})",
                        *found,
                        worst_cut(row),
                    ]
                )
            )
    return "\n".join([*lines, ""])


def link(bug: str) -> str:
    """Return the address of ``owner/name#number``."""
    return f"https://github.com/{bug.replace('#', '/issues/')}"


def versions(frameworks: dict[str, Any]) -> str:
    """Return which versions were run."""
    lines = [
        "## What was run",
        "",
        joined(["framework", "version", "with", "cuts", "ranks"]),
        joined(["---"] * 5),
    ]
    for name, framework in frameworks.items():
        ranks = ", ".join(map(str, FRAMEWORKS[name].world_sizes))
        beside = ", ".join(f"{package} {version}" for package, version in framework["packages"].items())
        lines.append(
            joined([framework["title"], framework["version"], beside, ", ".join(framework["cuts"]), ranks])
        )
    return "\n".join([*lines, "", HASHES])


def stand_ins(frameworks: dict[str, Any]) -> str:
    """Return the lines of frameworks that we stand in for."""
    lines = [STAND_INS, joined(["line of the framework", "in its place"]), joined(["---"] * 2)]
    for framework in frameworks.values():
        lines += [
            joined([f"`{s['file']}:{s['line_number']}` `{s['line']}`", s["ours"]])
            for s in framework["stand_ins"]
        ]
    return "\n".join([*lines, ""])


def joined(entries: list[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(entries)} |"


INTRODUCTION = """\
# Conformance

The policy losses of RL frameworks on the same mini-batch, each through the framework's own loss code,
accumulated over micro-batches and ranks as its own trainer does. 16 responses of 2 to 29 tokens in four
groups; 224 tokens and four of a tool; L = 32; the same advantages for all; ratios inside and outside of the
clip range.

```bash
{command}  # needs the network
```

makes an environment per framework, runs each on one rank and on two, and writes this page. A framework that
is missing, or differs from the one below, is named. `--checkout NAME=PATH` runs one from your checkout.
{date}, CPU.

A cell is **error · distance · scale**, of the gradient with respect to the log-probs:

- error: between any cut (whole, halves, singles, by tokens; one rank and two) and the framework's own whole
  mini-batch on one rank: the largest difference over the largest entry;
- distance: the same between that whole mini-batch and the [paper](papers.md) in float64;
- scale: the factor of the paper's gradient that fits best. A distance of |scale − 1| is a constant, which a
  learning rate absorbs; any other is another direction.

0 is at most 1e-6. “One masked”: all tokens of one response masked out; the papers' B stays 16.
"""

ESTIMATORS_TEXT = """\
## Advantages

Each framework's own estimator on two rewards of the same 16 responses, right or wrong and another; MaxRL
gets the first. Distance and scale are those of the advantages, to the paper's formula without ε: an ε of
1e-6 beside a divisor explains up to 1e-5.
"""

CONTROLS = """\
## Controls that must fail

They depend on the cut by definition or by default; a measurement that does not see it is wrong: {controls}.
"""

KNOWN_BUGS = """\
## Known bugs, found again

Released versions with a bug that its authors have mended since, measured as all other rows are. The command
fails if an old version is exact, or a new one is not.

ms-swift divides `dapo`, `cispo` and `fipo` by the tokens of all micro-batches. Up to 4.5.3 Hugging Face's
`training_step` then divided by the number of micro-batches, too: 1/2 of the gradient is missing in halves,
and 15/16 in 16 micro-batches.

TRL counts the tokens of a generation, of `steps_per_generation` micro-batches. Up to 1.9.0 `dapo`, `cispo`
and `vespo` divided every update by them, also one that is a part of the generation. With 16 micro-batches in
a generation, an update of one had 1/16 of its gradient, and an update of 16 had all of it: an error of 15.
"""

HASHES = """\
Each is installed without its dependencies in front of verl's environment, so that none pulls CUDA; “with” is
what its loss ran beside. `benchmarks/conformance/results.json` keeps the SHA-256 of every source file that a
loss passes through. If one changes, the command keeps the old row and fails; look at the adapter, then type
`--accept`.
"""

STAND_INS = """\
## Lines of ours

In the place of lines that need a GPU, an engine or a whole trainer. Gradients are averaged over ranks, as
DDP, FSDP and DeepSpeed do.
"""
