"""Write docs/papers.md from the catalogue's records: ``python tests/helpers/write_paper_index.py``."""

import re
from pathlib import Path

from grpo_verl_ext.catalogue import ALGORITHMS, Algorithm, Estimator
from grpo_verl_ext.utils.keys import ESTIMATOR, LOSS

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"

INTRODUCTION = """# Papers

Every paper with a preset: what it fixes, and a complete command, which trains the embedded task on a machine
[without a GPU](cpu.md). On GPUs `ALGO=NAME bash examples/train/gsm8k.sh` takes [any of them](gpus.md); a
training of yours takes `+algo=NAME`; `python examples/chain_sum_teacher.py TEACHER` makes the teacher of a
distillation. In Python, `losses.NAME` is the
[loss in one call](api.md#losses), if it is not verl's own.

Written by `python tests/helpers/write_paper_index.py` from [the records](../grpo_verl_ext/catalogue).
"""
HEAD = ("paper", "what it fixes", "preset", "complete command")


def page() -> str:
    """The text of the page."""
    rows = [HEAD, tuple("---" for _ in HEAD), *(_row(of_paper) for of_paper in _papers())]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return (
        f"{INTRODUCTION}\n{table}{''.join(_reading(each) for each in ALGORITHMS.values() if each.values_of)}"
    )


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
    paper = f"{first.title}, [arXiv {number}](https://arxiv.org/abs/{number})" if number else first.paper
    cells = (
        [each.fixes for each in algorithms if each.fixes],
        [f"[`{each.name}`](algorithms/{each.name}.md)" for each in algorithms],
        [f"`bash examples/quickstart.sh --algo {each.name}{_teacher_of(each)}`" for each in algorithms],
    )
    return (paper, *("<br>".join(dict.fromkeys(cell)) for cell in cells))


def _teacher_of(algorithm: Algorithm) -> str:
    """What a distillation's command has besides the preset; its page says how the teacher is made."""
    if not (isinstance(algorithm.estimator, Estimator) and algorithm.estimator.needs_teacher):
        return ""
    return " distillation.teacher_models.teacher_model.model_path=TEACHER"


def _reading(algorithm: Algorithm) -> str:
    """Another reading of a paper, which is set beside its preset."""
    keys = f"{ESTIMATOR}={algorithm.estimator.name} {LOSS}={algorithm.loss.name}"
    return (
        f"\n{algorithm.paper}: `losses.{algorithm.name}`, and\n\n"
        f"```bash\nbash examples/quickstart.sh --algo {algorithm.values_of} \\\n    {keys}\n```\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
