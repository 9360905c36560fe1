"""Test the HTML page: content, hostile text, and that a browser loads nothing else."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import pytest
from playwright.sync_api import Browser, sync_playwright

from grpo_verl_ext.ablation.grid import runs_of
from grpo_verl_ext.ablation.report import COLOURS, Report, write_page
from grpo_verl_ext.ablation.results import Outcome, read_results

HOSTILE = (
    "<script>document.title='harmed'</script><img src=x onerror=\"document.title='harmed'\">"
    "</pre></main>&amp;{{ 7*7 }}\x00\x1b[31m\x07\u202egnp.exe\u2028"
)


@pytest.fixture
def folder(tmp_path: Path, grid_of, leave) -> Path:
    """Two variants, two seeds; with seed 2 one of them is not finished."""
    for run in runs_of(grid_of(["base", "other"], ["val/<acc>"], base=[HOSTILE])):
        steps = range(2 if run.name == "other/seed-2" else 3)
        folder = leave(
            run.variant, run.seed, {step: {"val/<acc>": step / 4 + run.seed / 10} for step in steps}
        )
        record = {"overrides": run.training.overrides, "steps": 2, "git_revision": "abc" * 20}
        versions = {"verl": "0.9.1", "torch": HOSTILE}
        (folder / "run.json").write_text(json.dumps({**record, "versions": versions}))
    return tmp_path


def as_html(report: Report) -> str:
    with TemporaryDirectory() as folder:
        return write_page(report, Path(folder)).read_text(encoding="utf-8")


def test_all_text_is_escaped_what_acts_is_named_and_what_shows_is_kept(folder: Path) -> None:
    report = Report(read_results(folder))
    report.warnings.append("a\tb\nc é 数 🙂\x1b[0m\u202e\ud800\x00")
    html = as_html(report)
    assert "a\tb\nc é 数 🙂⟨U+001B⟩[0m⟨U+202E⟩⟨U+D800⟩⟨U+0000⟩" in html
    assert "<script" not in html
    assert 'onerror="' not in html
    assert html.count("</main>") == 1
    assert "{{ 7*7 }}" in html, "text is no template"
    assert "⟨U+001B⟩[31m" in html
    assert "val/&lt;acc&gt;" in html
    assert "other/seed-2 (begun)" in html
    assert f"commit {'abc' * 20}; verl 0.9.1" in html
    assert str(folder) not in html, "a page is shown to others"


def test_a_grid_without_a_finished_run_has_a_page(tmp_path: Path, grid_of) -> None:
    grid_of(["b"], ["m"])
    assert "b/seed-1 (waiting)" in as_html(Report(read_results(tmp_path)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("there is no chromium; Debian's package of that name runs this test")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        found = playwright.chromium.launch(executable_path=executable, args=options)
        yield found
        found.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it_without_an_error_or_a_request(folder: Path, browser: Browser, width: int) -> None:
    file = write_page(Report(read_results(folder)), folder)
    page = browser.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert page.title() != "harmed"
    assert page.evaluate("document.querySelectorAll('script, img:not([src^=\"data:\"])').length") == 0
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
    # Every figure was drawn, and nothing makes the page wider than the screen.
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    assert page.evaluate("document.images.length") == 4
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "⟨U+202E⟩gnp.exe" in page.inner_text("main")
    page.close()


HEADINGS = r"<h([12])>(.*?)</h\1>"


def test_the_order_of_the_page(folder: Path, declared: Report) -> None:
    exploratory, html = as_html(Report(read_results(folder))), as_html(declared)
    headings = [[heading for _, heading in re.findall(HEADINGS, page)] for page in (exploratory, html)]
    assert headings[0] == [*("base, other", "Differences", "Curves", "Checks and costs", "Provenance")]
    assert headings[1][1:] == ["Differences", "Curves", "Checks and costs", "Provenance"]
    # 1/4 + 1/10 at the middle step is the area of both variants with seed 1.
    for part in (
        ">exploratory</b> no hypothesis was declared before the runs: take differences as hints<",
        "<li>other − base, mean over steps of val/&lt;acc&gt;, 1 seed: +0.000 (no interval)</li>",
        "<figcaption>mean difference with its 95 % interval; hollow: each seed</figcaption>",
    ):
        assert exploratory.count(part) == 1
    shown = [html.index(verdict.sentence) for verdict in declared.verdicts]
    assert shown == sorted(shown)
    assert shown[-1] < html.index("<h2>")
    assert (html.count('class="outcome"'), html.count("exploratory")) == (5, 0)
    for part in (
        "mean difference with its 96 % interval; hollow: each seed; shaded: the margin, ±0.05",
        "<figcaption>gold_response/probability</figcaption>",
        "<td>actor/pg_clipfrac, mean, at least 0.01</td><td>ppo</td><td>0.00996</td><td>missed</td>",
    ):
        assert html.count(part) == 1


def test_each_outcome_has_a_colour() -> None:
    others = {"higher", "lower", "control shown", "control missed", "exploratory"}
    assert {*get_args(Outcome), *others} - {"shown", "opposite"} == {*COLOURS}
