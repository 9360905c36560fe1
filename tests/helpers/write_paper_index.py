"""Write docs/papers.md from the catalogue's records: ``python tests/helpers/write_paper_index.py``."""

import re
from pathlib import Path

from grpo_verl_ext import losses
from grpo_verl_ext.catalogue import ALGORITHMS, Algorithm
from grpo_verl_ext.utils.keys import ESTIMATOR, LOSS

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"

INTRODUCTION = """# Papers

Every paper with a preset: what it fixes, and a complete command, which trains the embedded task on a machine
[without a GPU](cpu.md). On GPUs `ALGO=NAME bash examples/train/gsm8k.sh` takes [any of them](gpus.md); a
training of yours takes `+algo=NAME`. In Python, `losses.NAME` is the [loss in one call](api.md#losses).

Written by `python tests/helpers/write_paper_index.py` from [the records](../grpo_verl_ext/catalogue).
"""
HEAD = ("paper", "what it fixes", "preset", "complete command", "in one call")


def page() -> str:
    """The text of the page."""
    rows = [HEAD, tuple("---" for _ in HEAD), *(_row(of_paper) for of_paper in _papers())]
    return INTRODUCTION + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _papers() -> list[list[Algorithm]]:
    """The algorithms of each paper, by its date; those without one at the end."""
    papers: dict[str, list[Algorithm]] = {}
    for algorithm in ALGORITHMS.values():
        papers.setdefault(number_of(algorithm) or algorithm.paper, []).append(algorithm)
    return [papers[paper] for paper in sorted(papers, key=lambda each: (each[:1].isalpha(), each))]


def number_of(algorithm: Algorithm) -> str:
    """The paper's number at arXiv; empty if it is no paper."""
    found = re.match(r"arXiv (\d{4}\.\d{5})", algorithm.paper)
    return found[1] if found else ""


def _row(algorithms: list[Algorithm]) -> tuple[str, ...]:
    number, first = number_of(algorithms[0]), algorithms[0]
    paper = f"{first.title}, [arXiv {number}](https://arxiv.org/abs/{number})" if number else first.paper
    cells = (
        [each.fixes for each in algorithms if each.fixes],
        [_preset(each) for each in algorithms],
        [_command(each) for each in algorithms],
        [f"`losses.{each.name}`" if each.name in dir(losses) else "verl's own" for each in algorithms],
    )
    return (paper, *("<br>".join(dict.fromkeys(cell)) for cell in cells))


def _preset(algorithm: Algorithm) -> str:
    name = algorithm.values_of or algorithm.name
    reading = "" if algorithm.has_preset else ", per prompt"
    return f"[`{name}`](algorithms/{name}.md){reading}"


def _command(algorithm: Algorithm) -> str:
    keys = f" {ESTIMATOR}={algorithm.estimator.name} {LOSS}={algorithm.loss.name}"
    name = algorithm.values_of or algorithm.name
    return f"`bash examples/quickstart.sh --algo {name}{'' if algorithm.has_preset else keys}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
