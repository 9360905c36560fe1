"""What the variants answered to the same prompts, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_verl_ext.ablation.results import Results
from grpo_verl_ext.runs.dumps import Response

SHOWN = 6


@dataclass(frozen=True)
class SideBySide:
    """One prompt and an answer of each variant."""

    prompt: str
    truth: object
    answers: dict[str, Response]


def side_by_side(results: Results) -> tuple[int, list[SideBySide]] | None:
    """Seed and prompts: those on whose scores the variants differ most come first.

    The first seed with samples of every variant that is finished; None if no seed has.
    """
    for seed in results.settings.seeds:
        of_variant = {
            variant: {sample.prompt: sample for sample in run.samples}
            for variant in results.variants
            for run in results.finished(variant)
            if run.seed == seed and run.samples
        }
        if of_variant and of_variant.keys() == {v for v in results.variants if results.finished(v)}:
            return seed, _most_different(of_variant)
    return None


def _most_different(of_variant: dict[str, dict[str, Response]]) -> list[SideBySide]:
    first = next(iter(of_variant.values()))
    common = [prompt for prompt in first if all(prompt in samples for samples in of_variant.values())]
    rows = [
        SideBySide(
            prompt, first[prompt].truth, {name: samples[prompt] for name, samples in of_variant.items()}
        )
        for prompt in common
    ]
    return sorted(rows, key=_agreement)[:SHOWN]


def _agreement(row: SideBySide) -> float:
    scores = [answer.score for answer in row.answers.values()]
    return min(scores) - max(scores)
