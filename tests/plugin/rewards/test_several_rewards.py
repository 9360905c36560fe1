"""Test GDPO from what the reward function reported to advantages: collection, estimator and refusals."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from grpo_verl_ext.preflight import CHECKS
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.rewards import trainer
from grpo_verl_ext.verl_plugin.rewards.trainer import OtherRewardsMixin, _collected_rewards
from grpo_verl_ext.verl_plugin.wire import PASSED, passing

gdpo = get_adv_estimator_fn("gdpo_outcome")
F64 = torch.float64
KEYS = ["right", "format"]
IDS = ("x", "x", "x", "y", "y", "z", "pad" + 32 * "0")
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]])
REWARDS = torch.tensor(
    [[1.0, 0.8], [0.0, 0.8], [0.0, 0.2], [2.0, 0.0], [0.0, 0.6], [1.0, 1.0], [9.0, 9.0]], dtype=F64
)
"""Groups of three, two and one, and verl's padding."""


def advantages(rewards: Tensor = REWARDS, **algorithm: Any) -> Tensor:
    config = OmegaConf.create({"adv_estimator": "gdpo_outcome", **algorithm})
    with passing(several_rewards=rewards):
        found, returns = gdpo(torch.zeros(7, 3, dtype=F64), MASK, IDS, config)
    assert returns is found
    return found


@pytest.mark.parametrize("weights", [None, [1.0, 0.3]])
def test_equals_the_oracle(weights: list[float] | None) -> None:
    expected = oracles.gdpo_advantages(REWARDS[:6].tolist(), weights or [1.0, 1.0], IDS[:6], eps=1e-6)
    found = advantages(gdpo_reward_weights=weights)
    wanted = torch.tensor([*expected, 0.0], dtype=F64)[:, None] * MASK
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e16])
def test_a_reward_that_would_spoil_the_batch_is_refused(bad: float) -> None:
    spoiled = REWARDS.clone()
    spoiled[6, 1] = bad
    advantages(spoiled)  # of verl's padding
    spoiled[2, 1] = bad
    with pytest.raises(ValueError, match=r"the reward of row 2 is .*reward\.custom_reward_function\.path"):
        advantages(spoiled)


def test_without_the_rewards_it_says_what_to_type() -> None:
    with pytest.raises(ValueError, match=r"no rewards but their sum to learn from; .*Type: \+algo.*=gdpo"):
        gdpo(torch.zeros(7, 3), MASK, IDS, OmegaConf.create({"adv_estimator": "gdpo_outcome"}))


def batch(*extra: dict[str, Any], padding: int = 0) -> tuple[SimpleNamespace, TensorDict]:
    """Keys and tags of rows with these ``extra_fields``, the last of which are padding; and the fields."""
    keys = [f"p_{i}_0" for i in range(len(extra))]
    tags = [{"is_padding": i >= len(extra) - padding} for i in range(len(extra))]
    return SimpleNamespace(keys=keys, tags=tags), tu.get_tensordict({"extra_fields": list(extra)})


def reporting(*reports: dict[str, Any], padding: int = 0) -> tuple[SimpleNamespace, TensorDict]:
    return batch(*({"reward_extra_info": each} for each in reports), padding=padding)


class TestCollected:
    def test_in_the_order_of_the_keys_and_without_padding(self) -> None:
        rows = [{"format": 0.2, "right": 1, "score": 1.2}, {"format": np.float32(0.5), "right": True}, {}]
        found = _collected_rewards(*reporting(*rows, padding=1), KEYS)
        torch.testing.assert_close(found, torch.tensor([[1, 0.2], [1, 0.5], [0, 0]]))

    def test_of_a_session_with_several_outputs_the_last_counts(self) -> None:
        meta, data = reporting({}, {"format": 0.2, "right": 1})
        meta.keys = ["p_0_0", "p_0_1"]
        torch.testing.assert_close(_collected_rewards(meta, data, KEYS), torch.tensor([[0, 0], [1, 0.2]]))

    @pytest.mark.parametrize("value", [None, "0.2", [0.2]])
    def test_a_response_without_one_names_those_that_it_has(self, value: object) -> None:
        rows = [{"right": 1.0, "format": 0.2}, {"right": 1.0, "acc": 1.0, "format": value, "pred": "14"}]
        with pytest.raises(ValueError, match=r"p_1_0 .* has format=.*: right, acc\. .*_keys=\[right,acc\]"):
            _collected_rewards(*reporting(*rows), KEYS)

    @pytest.mark.parametrize("reported", [{}, {"acc": np.True_}])
    def test_fewer_than_two_numbers_are_none_for_gdpo(self, reported: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=r"p_0_0 .* Type: \+algo.*=grpo$"):
            _collected_rewards(*reporting(reported), KEYS)


class Verls(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Stands for verl's trainer where it calls the estimator."""

    def __init__(self, estimator: str) -> None:
        self.config = composed(["+algo=gdpo", f"algorithm.adv_estimator={estimator}"])

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return PASSED.get().steps, PASSED.get().several_rewards

    def on_sample_end(self, *_: Any) -> None:
        """verl's abstract method."""

    on_step_end = on_sample_end


class Ours(OtherRewardsMixin, Verls):
    pass


@pytest.mark.parametrize("estimator", ["gdpo_outcome", "grpo_outcome"])
def test_the_trainer_shows_the_rewards_to_gdpo_alone(estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    meta, data = reporting({"correctness": 2.0, "format": 0.8})
    monkeypatch.setattr(trainer, "nested", lambda batch, *fields: data)
    _, shown = Ours(estimator)._compute_advantage(meta, {})
    assert (shown is None) is (estimator == "grpo_outcome")
    if shown is not None:
        torch.testing.assert_close(shown, torch.tensor([[2.0, 0.8]]))
    assert PASSED.get().several_rewards is None


class TestChecks:
    def test_the_preset_passes_and_other_estimators_need_nothing(self) -> None:
        mine = "reward.custom_reward_function.path=mine.py"
        CHECKS["reported-rewards"](composed(["+algo=gdpo", mine]))
        CHECKS["reported-rewards"](composed(["+algo=gdpo", mine, "algorithm.gdpo_reward_keys=[a,b,c]"]))
        CHECKS["reported-rewards"](composed(["+algo=grpo"]))

    @pytest.mark.parametrize("keys", ["null", "[format]", "[format,format]"])
    def test_fewer_than_two(self, keys: str) -> None:
        with pytest.raises(SettingError, match=r"gdpo_reward_keys is .*two or more .*Type: 'algorithm\.gdpo"):
            CHECKS["reported-rewards"](composed(["+algo=gdpo", f"algorithm.gdpo_reward_keys={keys}"]))
