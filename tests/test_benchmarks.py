"""Test that the benchmarks call what they measure as it is now."""

import importlib.util
from pathlib import Path

import pytest

ALGORITHMS = Path(__file__).parents[1] / "benchmarks" / "algorithms.py"


@pytest.mark.parametrize("kind", ["estimator", "loss"])
def test_every_estimator_and_loss_beside_verls(kind: str) -> None:
    specification = importlib.util.spec_from_file_location("benchmarks_algorithms", ALGORITHMS)
    assert specification is not None
    assert specification.loader is not None
    benchmark = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(benchmark)
    calls = getattr(benchmark, f"{kind}_calls")(32, 8, "cpu")
    rows = benchmark.measure(calls, "cpu", repeat=1)
    assert {"estimator": {"floor", "gvpo", "verl grpo"}, "loss": {"gvpo", "verl vanilla"}}[kind] <= {
        row.name for row in rows
    }
    assert all(row.seconds > 0 for row in rows)
