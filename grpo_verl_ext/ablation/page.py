"""Write ``report.html``: one self-contained file without scripts or network access."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from grpo_verl_ext.ablation.figures import pictures_of
from grpo_verl_ext.ablation.report import Report
from grpo_verl_ext.utils.files import write_whole

_PAGE = "report.html"
_NAMED = 6
"""Largest number of variants that the title names."""

_BEHAVIOUR = {
    "response_length/mean": "length of responses, tokens",
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
        loader=PackageLoader("grpo_verl_ext", "ablation"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    analysis, results = report.analysis, report.analysis.results
    title = ", ".join(results.variants)
    if len(results.variants) > _NAMED:
        title = f"{len(results.variants)} variants of {' × '.join(results.settings.axes)}"
    behaviour = {metric: label for metric, label in _BEHAVIOUR.items() if metric not in analysis.curves}
    made_with = [
        f"commit {record.git_revision or 'unknown'}; "
        + ", ".join(f"{name} {version}" for name, version in record.versions.items())
        + f"; {record.machine}" * (record.machine is not None)
        for record in (run.record for run in results.runs)
        if record is not None
    ]
    return environment.get_template("page.html.jinja").generate(
        title=title,
        settings=results.settings,
        runs=analysis.asked_for,
        made_with=dict.fromkeys(made_with),
        finished=len(results.compared),
        statements=report.statements,
        warnings=[*analysis.missing, *analysis.warnings],
        missing=len(analysis.missing),
        lines=[*report.exploratory, *report.thresholds],
        tables=report.tables,
        **pictures_of(report, behaviour),
    )


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
