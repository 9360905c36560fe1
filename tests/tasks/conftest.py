"""Fixtures: prepared folders with barely trained models, shared by tests that only read them."""

from pathlib import Path

import pytest

from grpo_verl_ext.tasks.chain_sum.prepare import prepare_chain_sum
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings
from grpo_verl_ext.tasks.folders import PreparedOutcome

TINY = TaskSettings(
    max_terms=4,
    train_problems=30,
    test_problems=9,
    width=32,
    layers=1,
    heads=1,
    feed_forward=32,
    steps=3,
    slip_steps=1,
    batch_size=4,
    workers=2,
)


@pytest.fixture(scope="session")
def tiny() -> TaskSettings:
    return TINY


@pytest.fixture(scope="session")
def tiny_prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedOutcome:
    root: Path = tmp_path_factory.mktemp("cache")
    return prepare_chain_sum(7, settings=TINY, root=root)
