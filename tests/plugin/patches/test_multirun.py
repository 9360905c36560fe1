"""Test that each training of Hydra's ``--multirun`` starts with a Ray of its own."""

from collections.abc import Iterator

import pytest
import ray
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig

from grpo_verl_ext import driver


@pytest.fixture
def shut_down(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was called; Hydra's configuration is one of the whole process."""
    called: list[str] = []
    monkeypatch.setattr(ray, "shutdown", lambda: called.append("shutdown"))
    yield called
    HydraConfig.instance().cfg = None


@pytest.mark.parametrize(("mode", "number", "left"), [("MULTIRUN", 1, 1), ("MULTIRUN", 0, 0), ("RUN", 1, 0)])
def test_the_ray_of_the_training_before_is_left(
    mode: str, number: int, left: int, shut_down: list[str]
) -> None:
    with initialize_config_module("verl.trainer.config", version_base=None):
        of_hydra = [f"hydra.mode={mode}", f"hydra.job.num={number}"]
        config = compose("ppo_trainer", overrides=of_hydra, return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    driver._leave_ray_of_previous_training()
    assert shut_down == ["shutdown"] * left


def test_a_driver_without_hydra_keeps_its_ray(shut_down: list[str]) -> None:
    driver._leave_ray_of_previous_training()
    assert shut_down == []
