"""Test the estimators through verl's ``compute_advantage``: against verl's own, with every refusal.

The mathematics is tested in tests/algorithms/test_advantages.py.
"""

import math

import numpy as np
import oracles
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import (
    compute_rloo_outcome_advantage,
    compute_rloo_vectorized_outcome_advantage,
    get_adv_estimator_fn,
)
from verl.trainer.ppo.ray_trainer import compute_advantage

from grpo_verl_ext import dense_group_ids, outcome_advantages, per_prompt_token
from grpo_verl_ext.algorithms.advantages import learnt_from
from grpo_verl_ext.catalogue import ESTIMATORS
from grpo_verl_ext.verl_plugin.config import Options

F64 = torch.float64
# Prompts x (3 responses), y (2), z (1) and verl's padding, in the order in which sessions finish.
PAD = "pad" + 32 * "0"
IDS = np.array(["x", "y", "x", "z", "y", "x", PAD], dtype=object)
LENGTHS = [4, 2, 1, 3, 4, 2, 0]
REWARDS = [1.0, 2.0, 0.0, 3.0, 0.5, 0.25, 0.0]
MASK = torch.tensor([[1] * n + [0] * (4 - n) for n in LENGTHS])
REAL = slice(0, 6)
COUPLED = [0, 1, 2, 4, 5]


def token_level_rewards(dtype: torch.dtype = F64) -> Tensor:
    rewards = torch.zeros(7, 4, dtype=dtype)
    for row, (length, reward) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        rewards[row, max(length, 1) - 1] = reward
    return rewards


def algorithm(estimator: str, norm_adv_by_std_in_grpo: bool = True, **options: object) -> DictConfig:
    """verl's ``algorithm`` section as composed: in struct mode, our options in it."""
    config = OmegaConf.create(
        {"adv_estimator": estimator, "norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo, "grpo_ext": options}
    )
    OmegaConf.set_struct(config, True)
    return config


def through_verl(config: DictConfig, rewards: Tensor | None = None) -> Tensor:
    """(B, T) advantages by verl's own dispatcher; checks that returns are the same."""
    batch = {
        "token_level_rewards": token_level_rewards() if rewards is None else rewards,
        "response_mask": MASK,
    }
    data = DataProto.from_dict(tensors=batch, non_tensors={"uid": IDS})
    data = compute_advantage(data, adv_estimator=config.adv_estimator, config=config)
    torch.testing.assert_close(data.batch["returns"], data.batch["advantages"], rtol=0, atol=0)
    return data.batch["advantages"]


def on_tokens(advantages: list[float]) -> Tensor:
    return torch.tensor([*advantages, 0.0], dtype=F64).unsqueeze(-1) * MASK


def test_each_is_called_what_verl_calls_it():
    assert [get_adv_estimator_fn(name).__name__ for name in ESTIMATORS] == [*ESTIMATORS]


SCALED = oracles.grpo_advantages(REWARDS[REAL], IDS[REAL], eps=1e-6)
CENTRED = oracles.dr_grpo_advantages(REWARDS[REAL], IDS[REAL])
BY_BATCH = oracles.batch_scaled_advantages(REWARDS[REAL], IDS[REAL], 1e-6)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        *((algorithm(name), SCALED) for name in ("grpo_outcome", "dapo")),
        *((algorithm(name), CENTRED) for name in ("dr_grpo", "gvpo")),
        (algorithm("rloo_outcome"), oracles.rloo_advantages(REWARDS[REAL], IDS[REAL])),
        (algorithm("grpo_outcome", scale_rewards="batch"), BY_BATCH),
        (algorithm("grpo_outcome", scale_rewards="none"), CENTRED),
    ],
)
def test_each_equals_its_oracle(config, expected):
    torch.testing.assert_close(through_verl(config), on_tokens(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("verls", [compute_rloo_outcome_advantage, compute_rloo_vectorized_outcome_advantage])
def test_rloo_equals_verls_but_for_a_group_of_one(verls):
    expected, _ = verls(token_level_rewards(), MASK, IDS)
    found = through_verl(algorithm("rloo_outcome"))
    torch.testing.assert_close(found[COUPLED], expected[COUPLED], rtol=0, atol=1e-12)
    assert found[3].abs().sum() == 0


def test_dapo_per_prompt_divides_by_the_tokens_of_the_prompt():
    # x has 4 + 1 + 2 tokens, y 2 + 4, z 3.
    weighted = [a / {"x": 7, "y": 6, "z": 3}[i] for a, i in zip(SCALED, IDS[REAL], strict=True)]
    found = through_verl(algorithm("dapo_per_prompt"))
    torch.testing.assert_close(found, on_tokens(weighted), rtol=0, atol=1e-12)


def test_truncated_responses_count_among_the_tokens_of_their_prompt():
    # Bit for bit the composition of the public functions on (B, T), which no estimator makes any more.
    group = dense_group_ids(IDS)
    learnt = learnt_from(MASK, 4)
    spread = outcome_advantages(token_level_rewards(), learnt, group, member=MASK.any(dim=-1))
    wanted = per_prompt_token(spread, MASK, group)
    found = through_verl(algorithm("dapo_per_prompt", mask_truncated_completions=True, max_response_length=4))
    assert torch.equal(found, wanted)
    assert found[1, 0] != 0, "the other response of its prompt still learns"


def test_the_rewards_are_left_as_they_were():
    rewards = token_level_rewards()
    through_verl(algorithm("grpo_outcome"), rewards)
    assert rewards.tolist() == token_level_rewards().tolist()


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_garbage_in_a_padding_row_changes_nothing(garbage):
    rewards = token_level_rewards()
    rewards[-1] = garbage
    found = through_verl(algorithm("grpo_outcome"), rewards)
    assert found.tolist() == through_verl(algorithm("grpo_outcome")).tolist()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (algorithm("grpo_outcome", mask_truncated_completions=True), "max_response_length is null, but"),
        (algorithm("dr_grpo", scale_rewards="group"), "scale_rewards is group, .*valid is none"),
        (algorithm("grpo_outcome", norm_adv_by_std_in_grpo=False), "norm_adv_by_std_in_grpo is false"),
    ],
)
def test_bad_options_are_refused_with_key_value_and_remedy(config, message):
    with pytest.raises(ValueError, match=message):
        Options.for_estimator(config)
    with pytest.raises(ValueError, match=message):
        through_verl(config)


@pytest.mark.parametrize(("ids", "said"), [(None, 0), (IDS[:2], 2)])
def test_missing_prompt_ids_are_refused(ids, said):
    with pytest.raises(ValueError, match=rf"index has {said} prompt ids for 7 rows.*Pass index="):
        get_adv_estimator_fn("grpo_outcome")(token_level_rewards(), MASK, ids)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rewards_that_are_not_finite_are_refused(bad):
    rewards = token_level_rewards()
    rewards[2, 0] = bad
    with pytest.raises(ValueError, match=rf"reward of row 2 is {bad}.*reward\.custom_reward_function"):
        get_adv_estimator_fn("grpo_outcome")(rewards, MASK, IDS)
