"""Test verdicts, checks and controls of grids whose numbers are known, next to scipy and by hand."""

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from grpo_verl_ext.ablation.declaration import Control, Expectation, ManipulationCheck, Primary, VariantPair
from grpo_verl_ext.ablation.grid import GridSettings
from grpo_verl_ext.ablation.report import Report
from grpo_verl_ext.ablation.results import read_results, read_table, write_table
from grpo_verl_ext.ablation.verdicts import control_of

SEEDS = [1, 2, 3, 4, 5, 6, 7, 8]
LEVEL = [0.3, 0.5, 0.4, 0.6, 0.35, 0.45, 0.55, 0.5]
"""Of each start; pairing removes it."""
NOISE = [0.01, -0.02, 0.02, -0.01, 0.03, -0.03, 0.015, -0.015]
"""Sums to 0."""
LOWER = [-0.3, -0.31, -0.29, -0.3, -0.28, -0.32, -0.3, -0.3]

HIGHER = [Expectation("a", "higher")]
BOTH_HIGHER = [*HIGHER, Expectation("b", "higher")]
NOISY = [0.02 + 3 * noise for noise in NOISE]
STARTS_FOR_NOISY = math.ceil(
    TTestPower().solve_power(effect_size=0.05 / np.std(NOISY, ddof=1), alpha=0.04, power=0.8)
)

Grid = Callable[..., Report]


@pytest.fixture
def write(grid_of, leave, tmp_path: Path) -> Callable[..., GridSettings]:
    """Leave the runs of variants that differ from ``base`` by this much with each seed, in a folder."""

    def write(name: str, differences: Mapping[str, list[float]], **more: Any) -> GridSettings:
        primary, control = Primary("acc", "final"), Control("bad", "lower")
        usual = {"seeds": SEEDS, "primary": primary, "margin": 0.05, "control": control}
        settings = grid_of(["base", *differences], ["acc"], tmp_path / name, **usual | more)
        for variant in settings.overrides:
            own = differences.get(variant, [0.0] * len(SEEDS))
            for seed, level, difference in zip(SEEDS, LEVEL, own, strict=False):
                data = {"acc": level + difference, "clip": 0.02, "timing_s/step": 30.0}
                leave(variant, seed, {1: data, 2: data}, tmp_path / name)
        return settings

    return write


@pytest.fixture
def grid(write, tmp_path: Path) -> Grid:
    """The report on a grid with a variant ``bad``, which is lower."""

    def grid(differences: Mapping[str, list[float]], **more: Any) -> Report:
        write("grid", {"bad": LOWER, **differences}, **more)
        return Report(read_results(tmp_path / "grid"))

    return grid


def around(mean: float) -> list[float]:
    return [mean + noise for noise in NOISE]


class TestNumbers:
    def test_next_to_scipy(self, grid: Grid) -> None:
        (found,) = grid({"a": around(0.03)}, expect=HIGHER).verdicts
        wanted = stats.ttest_1samp(around(0.03), 0.0)
        low, high = wanted.confidence_interval(0.96)
        assert (found.variant, found.against, found.expected) == ("a", "base", "higher")
        assert found.difference == pytest.approx(0.03, rel=1e-9)
        assert (found.low, found.high) == (pytest.approx(low, rel=1e-9), pytest.approx(high, rel=1e-9))
        assert found.p == found.adjusted_p == pytest.approx(wanted.pvalue, rel=1e-9)
        below = stats.ttest_1samp(around(0.03), 0.05, alternative="less").pvalue
        assert found.p_equal == pytest.approx(below, rel=1e-9)
        assert found.by_seed == pytest.approx(dict(zip(SEEDS, around(0.03), strict=True)))

    def test_two_measures_of_one_pair(self, write, leave, tmp_path: Path) -> None:
        """The difference is there in the last of two steps alone, so that their mean has half of it."""
        both = [Expectation("a", "higher"), Expectation("a", "higher", measure="mean")]
        write("grid", {"a": [], "bad": LOWER}, expect=both)
        for seed, level, difference in zip(SEEDS, LEVEL, around(0.03), strict=True):
            leave("a", seed, {1: {"acc": level}, 2: {"acc": level + difference}}, tmp_path / "grid")
        final, mean = Report(read_results(tmp_path / "grid")).verdicts
        assert (final.measure, mean.measure) == ("final", "mean")
        assert final.difference == pytest.approx(0.03, rel=1e-9)
        assert mean.difference == pytest.approx(0.015, rel=1e-9)
        p = stats.ttest_1samp(around(0.03), 0.0).pvalue  # half of each difference has the same
        assert [final.adjusted_p, mean.adjusted_p] == pytest.approx([2 * p, 2 * p], rel=1e-9)
        assert mean.sentence.startswith("a is higher than base in the mean of acc: +0.015 (")

    def test_a_number_that_theory_predicts(self, grid: Grid) -> None:
        """Not paired: the spread of the starts stays."""
        values = [level + other for level, other in zip(LEVEL, around(0.03), strict=True)]
        (found,) = grid({"a": around(0.03)}, expect=[Expectation("a", "higher", 0.3)]).verdicts
        wanted = stats.ttest_1samp(values, 0.3)
        assert (found.variant, found.against, len(found.by_seed)) == ("a", "0.3", 8)
        assert found.difference == pytest.approx(np.mean(values) - 0.3, rel=1e-9)
        assert found.p == pytest.approx(wanted.pvalue, rel=1e-9)
        assert found.sentence.startswith("a is higher than 0.3 in the last value of acc: +0.186 (")

    def test_a_difference_of_differences(self, grid: Grid) -> None:
        """(a − base) − (b − c) by hand, on starts that all four have."""
        a, b, c = around(0.06), [0.02] * 8, [0.01, 0.03] * 4
        expect = [Expectation("a", "higher", minus=VariantPair("b", "c"))]
        missed = [ManipulationCheck("clip", "mean", 0.5, ["c"])]
        (found,) = grid({"a": a, "b": b, "c": c}, expect=expect, checks=missed).verdicts
        assert found.outcome == "not exercised", "a check of any of its variants counts"
        by_hand = [x - (y - z) for x, y, z in zip(a, b, c, strict=True)]
        assert (found.variant, found.against) == ("(a − base)", "(b − c)")
        assert found.by_seed == pytest.approx(dict(zip(SEEDS, by_hand, strict=True)))
        assert found.p == pytest.approx(stats.ttest_1samp(by_hand, 0.0).pvalue, rel=1e-6)
        assert (
            "whether (a − base) is higher than (b − c) in the last value of acc: +0.060 (" in found.sentence
        )

    def test_holm_over_what_is_expected(self, grid: Grid) -> None:
        """The smaller p is doubled; the larger is not, and passes where Bonferroni's rule would stop it."""
        strong, weak = around(0.06), around(0.022)
        expect = [Expectation("b", "higher"), Expectation("a", "higher")]
        verdicts = grid({"a": strong, "b": weak}, expect=expect).verdicts
        p_weak, p_strong = (float(stats.ttest_1samp(each, 0.0).pvalue) for each in (weak, strong))
        assert 0.02 < p_weak < 0.04
        assert [each.adjusted_p for each in verdicts] == pytest.approx([p_weak, 2 * p_strong], rel=1e-6)
        assert [each.outcome for each in verdicts] == ["shown"] * 2

    def test_expected_equality_enters_holm_with_its_own_p(self, grid: Grid) -> None:
        expect = [Expectation("a", "higher"), Expectation("b", "equal")]
        first, second = grid({"a": around(0.06), "b": around(0.01)}, expect=expect).verdicts
        assert second.p is not None
        assert second.p > 0.2
        assert [first.adjusted_p, second.adjusted_p] == pytest.approx(
            multipletests([first.p, second.p_equal], method="holm")[1].tolist()
        )
        assert second.outcome == "shown"


class TestSentences:
    @pytest.mark.parametrize(
        ("mean", "expected", "said"),
        [
            (0.06, "higher", "a is higher than base; as expected"),
            (0.06, "lower", "a is higher than base; where lower was expected"),
            (-0.06, "different", "a is lower than base; as expected"),
            (0.06, "equal", "a is higher than base; where equality was expected"),
            (0.005, "equal", "a equals base within ±0.05; as expected"),
            (0.005, "higher", "a equals base within ±0.05; where higher was expected"),
        ],
    )
    def test_what_was_decided(self, grid: Grid, mean: float, expected: str, said: str) -> None:
        (found,) = grid({"a": around(mean)}, expect=[Expectation("a", expected)]).verdicts
        wanted, (claim, end) = stats.ttest_1samp(around(mean), 0.0), said.split("; ")
        low, high = wanted.confidence_interval(0.96)
        equal = stats.ttest_1samp(around(mean), 0.05, alternative="less").pvalue
        p = equal if "within" in said else wanted.pvalue
        numbers = f"{mean:+.2g}" if abs(mean) < 0.01 else f"{mean:+.3f}"
        numbers += f" (96% interval {low:.3f} to {high:.3f}; 8 seeds; p = {p:.2g})"
        assert found.sentence == f"{claim} in the last value of acc: {numbers}, {end}".replace("-", "−")
        assert found.label.partition(" ")[0][:5] in claim

    def test_undecided(self, grid: Grid) -> None:
        (found,) = grid({"a": NOISY}, expect=HIGHER).verdicts
        p = stats.ttest_1samp(NOISY, 0.0).pvalue
        assert found.starts_needed == STARTS_FOR_NOISY == 17
        assert found.sentence.startswith("it is undecided whether a is higher than base in the last value of")
        end = f"; 8 seeds; p = {p:.2g}); finding a difference of 0.05 takes 9 more seeds"
        assert found.sentence.endswith(end)

    def test_undecided_with_enough_starts(self, grid: Grid) -> None:
        (found,) = grid({"a": around(0.017)}, expect=HIGHER, margin=0.03).verdicts
        assert found.outcome == "undecided"
        pairs = TTestPower().solve_power(effect_size=0.03 / np.std(NOISE, ddof=1), alpha=0.04, power=0.8)
        assert found.starts_needed == math.ceil(pairs) == 7
        assert found.sentence.endswith("7 seeds are enough to find 0.03 with 80%")


class TestUndecidedWithAReason:
    @pytest.mark.parametrize("count", [0, 2])
    def test_fewer_than_three_starts(self, grid: Grid, count: int) -> None:
        (found,) = grid({"a": around(0.03)[:count]}, expect=HIGHER).verdicts
        assert (found.outcome, len(found.by_seed)) == ("undecided", count)
        assert (found.p, found.low) == (None, None)
        assert found.sentence.endswith("); fewer than 3 seeds are finished by both")
        assert (found.difference is None) == (count == 0)
        assert (found.starts_needed, found.adjusted_p) == (None, None)

    def test_no_spread(self, grid: Grid) -> None:
        """0.3 + 0.1 − 0.3 and 0.5 + 0.1 − 0.5 differ in the last bit."""
        (found,) = grid({"a": [0.1] * 8}, expect=HIGHER).verdicts
        assert (found.outcome, found.p, found.starts_needed) == ("undecided", None, None)
        assert found.sentence.endswith("); the difference is the same with every seed")

    def test_a_nan(self, grid: Grid) -> None:
        values = around(0.03)
        values[2] = math.nan
        (found,) = grid({"a": values}, expect=HIGHER).verdicts
        assert (found.outcome, found.difference, len(found.by_seed)) == ("undecided", None, 8)
        assert found.sentence.endswith("8 seeds); a value is NaN with seed 3")


SECOND_HALF = "mean over the second half"


class TestChecks:
    def checked(self, grid: Grid, *check: Any) -> Report:
        both = {"a": around(0.06), "b": around(0.06)}
        return grid(both, expect=BOTH_HIGHER, checks=[ManipulationCheck(*check, ["a"])])

    def test_passed(self, grid: Grid) -> None:
        analysis = self.checked(grid, "clip", "mean", 0.02)
        assert [each.outcome for each in analysis.verdicts] == ["shown"] * 2
        check = analysis.checks[1]
        assert (check.name, check.variant, check.passed) == ("mean of clip, at least 0.02", "a", True)
        assert (check.value, check.is_control) == (pytest.approx(0.02), False)
        assert check.sentence == "a: mean of clip, at least 0.02: 0.020, passed"

    def test_a_missed_one_says_not_exercised_of_its_variant_alone(self, grid: Grid) -> None:
        analysis = self.checked(grid, "clip", "second_half", 0.03)
        missed, shown = analysis.verdicts
        assert (missed.outcome, shown.outcome) == ("not exercised", "shown")
        assert analysis.checks[1].sentence == f"a: {SECOND_HALF} of clip, at least 0.03: 0.020, missed"
        assert missed.sentence.startswith("nothing is said of whether a is higher than base in the last")
        assert missed.sentence.endswith(f"); {SECOND_HALF} of clip, at least 0.03, was missed by a")
        assert missed.p is not None

    def test_what_was_not_measured_is_missed(self, grid: Grid) -> None:
        analysis = self.checked(grid, "nothing", "mean", -1)
        assert analysis.verdicts[0].outcome == "not exercised"
        assert (analysis.checks[1].value, analysis.checks[1].passed) == (None, False)
        assert analysis.checks[1].sentence == "a: mean of nothing, at least -1: not measured, missed"
        assert "checks[0] has nothing, which no run has logged" in analysis.missing[0]


class TestControl:
    def test_shown(self, grid: Grid) -> None:
        check = grid({"a": around(0.06)}, expect=HIGHER).checks[0]
        assert (check.variant, check.passed, check.is_control) == ("bad", True, True)
        assert check.value == pytest.approx(-0.3)
        assert check.sentence.startswith(
            "positive control: bad is lower than base in the last value of acc: −0"
        )
        assert check.sentence.endswith("; p < 0.0001), as expected")

    @pytest.mark.parametrize(
        ("control", "differences"),
        [
            (Control("bad", "lower"), around(0.0)),
            (Control("bad", "lower"), around(0.06)),  # significant in the other direction
            (Control("bad", "higher"), LOWER),
            (Control("bad", "lower", "a"), around(0.06)),  # the same as a
            (Control("bad", "lower"), LOWER[:2]),
        ],
    )
    def test_a_missed_one_makes_every_verdict_blind(self, grid: Grid, control, differences) -> None:
        analysis = grid({"a": around(0.06), "bad": differences}, expect=HIGHER, control=control)
        (found,) = analysis.verdicts
        assert not analysis.checks[0].passed
        assert "positive control missed: " in analysis.checks[0].sentence
        assert found.outcome == "blind"
        assert (
            "whether a is higher than base in the last value of acc: +0.060 (96% interval 0.0"
            in found.sentence
        )
        assert found.sentence.endswith("; the positive control was missed, so that nothing is claimed")

    def test_it_is_tested_at_alpha_and_not_in_holms_family(self, grid: Grid) -> None:
        p = float(stats.ttest_1samp(around(-0.022), 0.0).pvalue)
        assert 0.02 < p < 0.04
        differences = {"a": around(0.0), "b": around(0.0), "bad": around(-0.022)}
        assert grid(differences, expect=BOTH_HIGHER).checks[0].passed


class TestControlOfAnotherGrid:
    def judged(self, grid: Grid, tmp_path: Path) -> Report:
        control = Control(grid=str(tmp_path / "calibration"))
        return grid({"a": around(0.06)}, expect=HIGHER, control=control)

    def test_shown(self, grid: Grid, write, tmp_path: Path) -> None:
        write("calibration", {"bad": LOWER}, margin=None)
        analysis = self.judged(grid, tmp_path)
        assert analysis.verdicts[0].outcome == "shown"
        check = analysis.checks[0]
        assert (check.variant, check.passed, check.is_control) == ("bad", True, True)
        assert check.sentence.endswith(f"; p < 0.0001), as expected (of {tmp_path}/calibration)")

    @pytest.mark.parametrize(
        ("differs", "why"),
        [
            (None, "valid is a folder that `ablate run` has begun"),
            ({"primary": None, "control": None}, "that grid declares no control of its own"),
            ({"primary": Primary("clip", "final")}, "nothing is known of the last value of acc"),
            ({"primary": Primary("acc", "mean")}, "nothing is known of the last value of acc"),
        ],
    )
    def test_one_that_says_nothing_of_it_is_missed(self, grid: Grid, write, tmp_path, differs, why) -> None:
        if differs is not None:
            write("calibration", {"bad": LOWER}, margin=None, **differs)
        analysis = self.judged(grid, tmp_path)
        assert analysis.verdicts[0].outcome == "blind"
        assert "calibration: missed; " in analysis.checks[0].sentence
        assert analysis.checks[0].sentence.endswith(why)

    def test_before_the_first_run_a_missing_one_is_named_with_what_to_do(self, write) -> None:
        shown = write("claim", {"a": []}, control=Control(grid="nowhere"))
        absent = control_of(shown)
        assert absent is not None
        assert not absent.passed
        assert absent.sentence.startswith("positive control of nowhere: missed; nowhere has no grid.json")
        assert control_of(replace(shown, control=Control("a", "lower"))) is None, "trained with the grid"

    def test_the_table_keeps_it(self, grid: Grid, write, tmp_path: Path) -> None:
        write("calibration", {"bad": LOWER}, margin=None)
        analysis = self.judged(grid, tmp_path)
        write_table(analysis.results, tmp_path / "kept.parquet")
        shutil.rmtree(tmp_path / "calibration")
        again = Report(read_table(tmp_path / "kept.parquet"))
        assert (again.verdicts, again.checks) == (analysis.verdicts, analysis.checks)


class TestAnalysis:
    def test_a_primary_that_no_run_logged_is_named(self, grid: Grid) -> None:
        analysis = grid({"a": around(0.06)}, expect=HIGHER, primary=Primary("accc", "final"))
        assert analysis.missing == [
            "primary has accc, which no run has logged; similar are acc. Correct it and type folder=<another>"
        ]
        assert analysis.verdicts[0].outcome == "blind"

    def test_the_primary_has_rows_of_its_own(self, grid: Grid) -> None:
        analysis = grid({"a": around(0.06)}, expect=HIGHER, primary=Primary("clip", "second_half"))
        assert {(row["metric"], row["measure"]) for row in analysis.results.rows} == {
            ("clip", "second_half"), ("acc", "final"), ("acc", "best"), ("acc", "area")
        }  # fmt: skip

    def test_verdicts_of_an_unfinished_grid_are_not_final(self, grid: Grid) -> None:
        analysis = grid({"a": around(0.06)[:6]}, expect=HIGHER)
        assert analysis.warnings[0].startswith(
            "6 of 8 declared seeds are finished and compared: the verdicts are not final"
        )
        assert "a/seed-7 (waiting), a/seed-8 (waiting)" in analysis.warnings[1]
