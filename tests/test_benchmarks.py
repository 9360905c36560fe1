"""Test that the benchmarks call what they measure as it is now."""

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("kind", "beside"), [("estimator", {"floor", "gvpo", "verl grpo"}), ("loss", {"gvpo", "verl vanilla"})]
)
def test_every_estimator_and_loss_beside_verls(
    kind: str, beside: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    benchmark = runpy.run_path(str(BENCHMARKS / "algorithms.py"))
    found = benchmark["measure"](benchmark[f"{kind}_calls"](32, 8, "cpu"), "cpu", repeat=1)
    assert beside <= set(found)
    assert all(seconds > 0 for seconds, _ in found.values())
