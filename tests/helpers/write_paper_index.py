"""Write docs/papers.md from the catalogue's records: ``python tests/helpers/write_paper_index.py``."""

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from grpo_verl_ext.catalogue import ALGORITHMS, PRESETS, Algorithm
from grpo_verl_ext.utils.keys import ESTIMATOR, LOSS

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"

INTRODUCTION = """# Papers

Every preset, with what its paper fixes. Settings: prompts × responses,
mini-batches in prompts, updates per rollout. The embedded task is trained [without a GPU](cpu.md) by

```bash
bash examples/quickstart.sh --algo NAME
```

On GPUs `ALGO=NAME bash examples/train/gsm8k.sh` takes [most](gpus.md), yours `+algo@_global_=NAME`. 27
were trained here: all [learn](../examples/ablations/RESULTS.md#does-every-preset-learn).
"""
HEAD = "| paper | what it fixes | authors' settings | preset |\n|---|---|---|---|\n"
GROUPS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text("utf-8"))
"""Group → preset → its authors' settings."""
SETTINGS = {name: said for group in GROUPS.values() for name, said in group.items()}


def page() -> str:
    """The text of the page."""
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(PRESETS)
    groups = ""
    for group, names in GROUPS.items():
        rows = (f"| {' | '.join(_row(of_paper))} |\n" for of_paper in _papers(names))
        groups += f"\n## {group}\n\n{HEAD}{''.join(rows)}"
    exceptions = "".join(_exception(each) for each in ALGORITHMS.values() if each.values_of)
    return f"{INTRODUCTION}{groups}{exceptions}\nWritten by `python tests/helpers/write_paper_index.py`.\n"


def _papers(names: Iterable[str]) -> list[list[Algorithm]]:
    """The algorithms of each paper, by its date; those without one at the end."""
    papers: dict[str, list[Algorithm]] = {}
    for algorithm in (each for each in ALGORITHMS.values() if each.has_preset and each.name in names):
        papers.setdefault(number_of(algorithm) or algorithm.paper, []).append(algorithm)
    return [papers[paper] for paper in sorted(papers, key=lambda each: (each[:1].isalpha(), each))]


def number_of(algorithm: Algorithm) -> str:
    """The paper's number at arXiv; empty if it is no paper."""
    found = re.match(r"arXiv (\d{4}\.\d{5})", algorithm.paper)
    return found[1] if found else ""


def _row(algorithms: list[Algorithm]) -> tuple[str, ...]:
    number, first = number_of(algorithms[0]), algorithms[0]
    paper = f"{first.title}, [{number}](https://arxiv.org/abs/{number})" if number else first.paper
    differ = len({each.fixes for each in algorithms}) > 1
    cells = (
        [f"`{each.name}`: " * differ + each.fixes for each in algorithms if each.fixes],
        [SETTINGS[first.name]],
        [f"[`{each.name}`](algorithms/{each.name}.md)" for each in algorithms],
    )
    return (paper, *("<br>".join(dict.fromkeys(cell)).replace("|", r"\|") for cell in cells))


def _exception(of: Algorithm) -> str:
    """The command of an algorithm that needs more than its preset."""
    keys = f"--algo {of.values_of} {ESTIMATOR}={of.estimator.name} {LOSS}={of.loss.name}"
    return f"\n{of.paper}, is `losses.{of.name}`, and\n\n```bash\nbash examples/quickstart.sh {keys}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
