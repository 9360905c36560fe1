"""Test cases in which a grid lost work, or its report said something wrong, once."""

from pathlib import Path

import pytest

from grpo_verl_ext.ablation.measures import Paired
from grpo_verl_ext.ablation.report import Report
from grpo_verl_ext.ablation.results import read_results
from grpo_verl_ext.ablation.verdicts import in_words


class TestAFinalValueIsOfTheLastStep:
    def test_the_report_begins_with_it(self, ablate, tmp_path: Path, grid_of, leave) -> None:
        """With verl's defaults there is one validation, before the first step."""
        grid_of(["grpo", "gvpo"], ["acc"])
        for variant in ("grpo", "gvpo"):
            for seed in (1, 2):
                leave(variant, seed, {0: {"acc": seed / 100}, 1: {"loss": 1.0}, 2: {"loss": 1.0}})
        assert ablate("report", tmp_path).output.startswith("acc ends at step 0 of 2")
        assert (tmp_path / "report.md").read_text().startswith("- acc ends at step 0 of 2")
        assert "acc ends at step 0 of 2" in (tmp_path / "report.html").read_text()

    @pytest.mark.parametrize(
        ("curve", "why"),
        [
            ({1: 0.9}, "acc ends at step 1 of 2 in b/seed-2: left out"),
            # as of a run whose first attempt's file was moved away: its area would be that of the end alone
            ({2: 0.5}, "acc lacks the steps 1 in b/seed-2, which most runs have: left out"),
            ({}, "acc is missing in b/seed-2: left out"),
        ],
    )
    def test_a_curve_that_is_not_whole_is_left_out(self, tmp_path: Path, grid_of, leave, curve, why) -> None:
        grid_of(["a", "b"], ["acc"], seeds=[1, 2])
        for variant, seed in (("a", 1), ("a", 2), ("b", 1)):
            leave(variant, seed, {1: {"acc": 0.1}, 2: {"acc": 0.5}})
        leave("b", 2, {step: {"acc": curve[step]} if step in curve else {} for step in (1, 2)})
        analysis = Report(read_results(tmp_path))
        assert all(row["by_seed"].keys() == {1} for row in analysis.results.rows if row["variant"] == "b")
        (missing,) = analysis.missing
        assert missing.startswith(why)

    def test_a_step_of_one_run_alone_does_not_count(self, tmp_path: Path, grid_of, leave) -> None:
        """verl validates once more where a training resumes."""
        grid_of(["a", "b"], ["acc"], seeds=[1, 2])
        for variant, seed in (("a", 1), ("a", 2), ("b", 1)):
            leave(variant, seed, {0: {"acc": 0.2}, 2: {"acc": 0.4}})
        leave("b", 2, {0: {"acc": 0.2}, 1: {"acc": 0.9}, 2: {"acc": 0.4}})
        analysis = Report(read_results(tmp_path))
        values = {row["measure"]: row["by_seed"] for row in analysis.results.rows if row["variant"] == "b"}
        assert values["area"] == pytest.approx({1: 0.3, 2: 0.3})
        assert values["best"] == {1: 0.4, 2: 0.4}
        assert analysis.missing == []


def test_small_numbers_are_not_shown_as_zero() -> None:
    numbers = Paired(by_seed={1: 5e-5, 2: 6e-5}, difference=5.5e-5, low=-5.14e-3, high=0.0123)
    assert in_words("b − a", numbers) == "b − a, 2 seeds: +5.5e−05 (−0.0051 … 0.012)"
