"""Write docs/papers.md from the catalogue's records: ``python tests/helpers/write_paper_index.py``."""

import re
from pathlib import Path

from grpo_verl_ext.catalogue import ALGORITHMS, PRESETS, Algorithm
from grpo_verl_ext.utils.keys import ESTIMATOR, LOSS

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"

INTRODUCTION = """# Papers

Every paper with a preset, whose NAME leads to its page. Settings have prompts × responses,
mini-batches in prompts, and updates per rollout. The embedded task is trained [without a GPU](cpu.md) by

```bash
bash examples/quickstart.sh --algo NAME
```

On GPUs `ALGO=NAME bash examples/train/gsm8k.sh` takes [most](gpus.md), a training of yours `+algo=NAME`. 24
were trained here, and all [learn](../examples/ablations/RESULTS.md#does-every-preset-learn).

Written by `python tests/helpers/write_paper_index.py`.
"""
HEAD = "| paper | what it fixes | authors' settings | preset |\n|---|---|---|---|\n"
GROUPS = {
    "Start here": ("grpo", "grpo_process", "ppo_kl", "dapo", "dr_grpo", "gvpo"),
    "Sequence level": ("gspo", "gmpo", "luspo", "vespo"),
    "Off-policy": ("topr", "cispo", "icepop", "dppo", "dppo_kl", "bpo", "klpo", "ipo"),
    "Entropy": ("clip_cov", "kl_cov"),
    "Others": ("ppo", "rloo", "kimi", "lite_ppo", "sapo", "grpo_unbiased_kl", "gdpo", "maxrl", "bnpo"),
}
"""Every preset, in one of them."""
SETTINGS = {
    "grpo": "lr 1e-6, 64 responses, KL 0.04",
    "dapo": "lr 1e-6, 512 × 16, mini-batches of 32",
    "dr_grpo": "lr 1e-6, 128 × 8, one update",
    "gvpo": "lr 1e-6, 1024 × 4, mini-batches of 256, β 0.1",
    "gspo": "four updates, clip 3e-4 and 4e-4",
    "gmpo": "lr 1e-6, 128 × 8, 3000 tokens",
    "luspo": "clip 2e-3 and 2.5e-3",
    "vespo": "lr 1e-6, 2048 prompts, mini-batches of 256",
    "icepop": "Ring-1T: bounds 0.5 and 5",
    "dppo": "lr 1e-6, 256 × 16, mini-batches of 32",
    "ipo": "eps 0.1, kl_tau 1e-3; later 0.3 and 0",
    "clip_cov": "256 prompts, mini-batches of 32",
    "ppo": "clip 0.2",
    "rloo": "KL 0.03",
    "lite_ppo": "8 responses, temperature 0.99, top_p 0.99, top_k 100",
    "sapo": "τ 1 and 1.05",
    "gdpo": "lr 1e-6, 512 × 4, mini-batches of 128",
    "maxrl": "lr 1e-6, 256 × 16, one update",
}
"""What the presets' comments or pages say of the authors' trainings; of a paper its first preset's."""


def page() -> str:
    """The text of the page."""
    assert sorted(sum(GROUPS.values(), ())) == sorted(PRESETS), "each preset is in one group"
    groups = "".join(f"\n## {group}\n\n{HEAD}{_rows(names)}" for group, names in GROUPS.items())
    return f"{INTRODUCTION}{groups}{''.join(_exception(each) for each in ALGORITHMS.values())}"


def _rows(names: tuple[str, ...]) -> str:
    return "".join(f"| {' | '.join(_row(of_paper))} |\n" for of_paper in _papers(names))


def _papers(names: tuple[str, ...]) -> list[list[Algorithm]]:
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
    cells = (
        [each.fixes for each in algorithms if each.fixes],
        [SETTINGS.get(first.name, "not given")],
        [f"[`{each.name}`](algorithms/{each.name}.md)" for each in algorithms],
    )
    return (paper, *("<br>".join(dict.fromkeys(cell)).replace("|", r"\|") for cell in cells))


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
