"""Write ``report.html``: one self-contained file without scripts or network access."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from grpo_verl_ext.ablation.report.figures import pictures_of
from grpo_verl_ext.ablation.report.summary import Report
from grpo_verl_ext.ablation.running.responses import NO_DIFFERENCE, SAMPLES, SHARE_RIGHT
from grpo_verl_ext.ablation.running.results import Results
from grpo_verl_ext.runs.dumps import Response
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.plotting import looks

_PAGE = "report.html"
_NAMED = 6
"""Largest number of variants that the title names."""

_BEHAVIOUR = {
    "response_length/mean": "length of responses, tokens",
    "responses/tokens/right": "length of right responses, tokens",
    "responses/tokens/wrong": "length of wrong responses, tokens",
    "responses/characters/right": "length of right responses, characters",
    "responses/characters/wrong": "length of wrong responses, characters",
    SHARE_RIGHT: "right responses, share of the training batch",
    NO_DIFFERENCE: "prompts whose responses all score the same, share",
    "actor/entropy_per_token": "entropy of the policy, nats a token",
    "actor/pg_clipfrac": "tokens whose ratio is clipped, share",
    "actor/ppo_kl": "KL to the policy of the rollout (k1), nats a token",
    "actor/kl_loss": "KL to the reference, nats (*)",
    "actor/grad_norm": "norm of the gradient (*)",
    # not response_length/clip_ratio: those as long as the longest of the batch (losses.mini_batch)
    "actor/frac_truncated": "truncated responses, share (this package's losses)",
}
"""Metrics of the page's section on behaviour, in its order. (*): the scale depends on the variant's
aggregation (`actor.loss_agg_mode`), hence a logarithmic axis."""


def write_page(report: Report, folder: Path) -> Path:
    """Write the page, whole or not at all."""
    # For hundreds of runs these are some 10 MB; joined as text they would take twice that.
    write_whole(folder / _PAGE, b"".join(piece.encode() for piece in _pieces(report)))
    return folder / _PAGE


def as_html(report: Report) -> str:
    """The page as text; all values are escaped, and invisible characters replaced by their code point."""
    return "".join(_pieces(report))


@dataclass(frozen=True)
class Page:
    """The page of a report, which a notebook shows in a frame, apart from its own styles."""

    report: Report

    def _repr_html_(self) -> str:
        page = escape(as_html(self.report), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40rem; border: 0"></iframe>'


def _pieces(report: Report) -> Iterator[str]:
    environment = Environment(
        loader=PackageLoader("grpo_verl_ext", "ablation/report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    analysis, results = report.analysis, report.analysis.results
    title, made_with, samples = _title(results), _made_with(results), side_by_side(results)
    behaviour = {metric: label for metric, label in _BEHAVIOUR.items() if metric not in analysis.curves}
    pictures = pictures_of(report, behaviour)
    return environment.get_template("page.html.jinja").generate(
        title=title,
        results=results,
        runs=analysis.asked_for,
        made_with=made_with,
        finished=sum(map(len, results.finished.values())),
        statements=report.statements,
        warnings=[*analysis.missing, *analysis.warnings],
        missing=len(analysis.missing),
        forest=pictures.forest,
        lines=[*report.exploratory, *report.thresholds],
        curves=pictures.curves,
        legend=pictures.legend,
        tables=report.tables,
        behaviour=pictures.behaviour,
        samples=samples,
        kept=SAMPLES,
        colours={name: looks(number)["color"] for number, name in enumerate(results.variants)},
    )


def _made_with(results: Results) -> list[str]:
    """Commits, versions and machines of the finished runs, each once."""
    records = [run.record for run in results.runs if run.record is not None]
    lines = [
        f"commit {record.git_revision or 'unknown'}; "
        + ", ".join(f"{name} {version}" for name, version in record.versions.items())
        + f"; {record.machine}" * (record.machine is not None)
        for record in records
    ]
    return list(dict.fromkeys(lines))


def _title(results: Results) -> str:
    if len(results.variants) > _NAMED:
        return f"{len(results.variants)} variants of {' × '.join(results.settings.axes)}"
    return ", ".join(results.variants)


_SHOWN = 6


@dataclass(frozen=True)
class _SideBySide:
    """One prompt and an answer of each variant."""

    prompt: str
    truth: object
    answers: dict[str, Response]


def side_by_side(results: Results) -> tuple[int, list[_SideBySide]] | None:
    """A seed, and the prompts on whose scores the variants differ most, the largest difference first.

    The seed is the first with samples of every variant that has finished runs; None if there is none.
    """
    for seed in results.settings.seeds:
        of_variant = {
            variant: {sample.prompt: sample for sample in run.samples}
            for variant in results.variants
            for run in results.finished[variant]
            if run.seed == seed and run.samples
        }
        if of_variant and of_variant.keys() == {v for v in results.variants if results.finished[v]}:
            return seed, _most_different(of_variant)
    return None


def _most_different(of_variant: dict[str, dict[str, Response]]) -> list[_SideBySide]:
    first = next(iter(of_variant.values()))
    common = [prompt for prompt in first if all(prompt in samples for samples in of_variant.values())]
    rows = [
        _SideBySide(
            prompt, first[prompt].truth, {name: samples[prompt] for name, samples in of_variant.items()}
        )
        for prompt in common
    ]
    return sorted(rows, key=_agreement)[:_SHOWN]


def _agreement(row: _SideBySide) -> float:
    scores = [answer.score for answer in row.answers.values()]
    return min(scores) - max(scores)


_KEPT = "\n\t"


def visible(text: str) -> str:
    """Replace control, direction, surrogate and private characters by their code point, such as ⟨U+202E⟩.

    HTML's special characters are left to the template's escaping.
    """
    return text if text.isprintable() else "".join(map(_named, text))


def _named(character: str) -> str:
    if character in _KEPT or not unicodedata.category(character).startswith("C"):
        return character
    return f"⟨U+{ord(character):04X}⟩"
