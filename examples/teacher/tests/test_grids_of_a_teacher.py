"""Test that the grids of a distillation compose, and that verl accepts their runs."""

from pathlib import Path

import pytest

from grpo_verl_ext.ablation.grid import read_grid, runs_of
from grpo_verl_ext.ablation.run import compose_runs

GRIDS = Path(__file__).parents[3] / "examples" / "ablations"


@pytest.mark.parametrize("name", ["gvpo_distill_chain_sum", "learning_rates_distill_chain_sum"])
def test_the_examples_compose(name: str) -> None:
    grid = read_grid(GRIDS / f"{name}.yaml")
    of_one_seed = [run for run in runs_of(grid) if run.seed == grid.seeds[0]]
    assert len(compose_runs(of_one_seed)) >= 2
