"""Write docs/papers.md from the catalogue's records: ``python tests/helpers/write_paper_index.py``."""

import re
from pathlib import Path

from grpo_verl_ext.catalogue import ALGORITHMS, Algorithm
from grpo_verl_ext.utils.keys import ESTIMATOR, LOSS

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"

INTRODUCTION = """# Papers

Every paper with a preset, by arXiv number. The preset's NAME leads to its page. The embedded task is trained
[without a GPU](cpu.md) by

```bash
bash examples/quickstart.sh --algo NAME
```

On GPUs `ALGO=NAME bash examples/train/gsm8k.sh` takes [most](gpus.md), a training of yours `+algo=NAME`. All
[learn](../examples/ablations/RESULTS.md#does-every-preset-learn).

Written by `python tests/helpers/write_paper_index.py`.
"""
HEAD = ("paper", "what it fixes", "preset")


def page() -> str:
    """The text of the page."""
    rows = [HEAD, tuple("---" for _ in HEAD), *(_row(of_paper) for of_paper in _papers())]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{INTRODUCTION}\n{table}{''.join(_exception(each) for each in ALGORITHMS.values())}"


def _papers() -> list[list[Algorithm]]:
    """The algorithms of each paper, by its date; those without one at the end."""
    papers: dict[str, list[Algorithm]] = {}
    for algorithm in (each for each in ALGORITHMS.values() if each.has_preset):
        papers.setdefault(number_of(algorithm) or algorithm.paper, []).append(algorithm)
    return [papers[paper] for paper in sorted(papers, key=lambda each: (each[:1].isalpha(), each))]


def number_of(algorithm: Algorithm) -> str:
    """The paper's number at arXiv; empty if it is no paper."""
    found = re.match(r"arXiv (\d{4}\.\d{5})", algorithm.paper)
    return found[1] if found else ""


def _row(algorithms: list[Algorithm]) -> tuple[str, ...]:
    number, first = number_of(algorithms[0]), algorithms[0]
    paper = f"{first.title}, [{number}](https://arxiv.org/abs/{number})" if number else first.paper
    cells = (
        [each.fixes for each in algorithms if each.fixes],
        [f"[`{each.name}`](algorithms/{each.name}.md)" for each in algorithms],
    )
    return (paper, *("<br>".join(dict.fromkeys(cell)) for cell in cells))


def _exception(algorithm: Algorithm) -> str:
    """The command of an algorithm that needs more than its preset; empty for the others."""
    train = f"bash examples/quickstart.sh --algo {algorithm.values_of or algorithm.name}"
    if algorithm.values_of:
        said = f"{algorithm.paper}, is `losses.{algorithm.name}`, and"
        keys = f"{ESTIMATOR}={algorithm.estimator.name} {LOSS}={algorithm.loss.name}"
        return f"\n{said}\n\n```bash\n{train} \\\n    {keys}\n```\n"
    return ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
