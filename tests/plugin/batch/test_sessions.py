"""Test which rewards count: rejected responses, padding, several outputs of a session; in verl's v1 path.

The comparison is with verl's ``grpo``. A dictionary replaces TransferQueue, which needs Ray.
"""

import math
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import fsdp2_ranks
import numpy as np
import pytest
import ray
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from queue_store import Store, trainer_with
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import FixedKLController, get_adv_estimator_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from grpo_verl_ext.catalogue import ESTIMATORS
from grpo_verl_ext.utils.keys import ESTIMATOR, LOSS
from grpo_verl_ext.verl_plugin.batch.sessions import last_outputs, row_roles
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.wire import BatchSteps, passing

F64 = torch.float64
EPS = 1e-6
PAD = "pad" + "0123456789abcdef" * 2
REJECT = {"rollout_rs": "seq_mean_k2", "rollout_rs_threshold": "0.5"}


def algorithm(estimator: str, **options: object) -> DictConfig:
    unscaled = estimator in ("dr_grpo", "gvpo") or options.get("scale_rewards") == "none"
    return OmegaConf.create(
        {"adv_estimator": estimator, "norm_adv_by_std_in_grpo": not unscaled, "grpo_ext": options}
    )


def through_verl(
    keys: Sequence[str],
    rewards: Sequence[float],
    mask: Sequence[Sequence[int]],
    config: DictConfig,
    rejected: Sequence[int] = (),
) -> Tensor:
    """(B, T) advantages by the functions that verl's v1 trainer calls; rows of ``rejected`` by verl's own."""
    response_mask = torch.tensor(mask)
    token_level_rewards = torch.zeros(response_mask.shape, dtype=F64)
    token_level_rewards[:, -1] = torch.tensor(rewards, dtype=F64)
    rollout = torch.zeros(response_mask.shape, dtype=F64)
    rollout[list(rejected)] = -3.0  # k2 = 4.5 a token, above the threshold
    tensors = {"response_mask": response_mask, "token_level_rewards": token_level_rewards}
    tensors |= {"old_log_probs": torch.zeros_like(rollout), "rollout_log_probs": rollout}
    uids = np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})
    if rejected:
        data, _ = compute_rollout_correction_and_add_to_batch(data, OmegaConf.create(REJECT))
        assert data.batch["response_mask"][list(rejected)].sum() == 0
    named = {name: config[name] for name in ("adv_estimator", "norm_adv_by_std_in_grpo")}
    data = compute_advantage_for_multi_trajectories(data, batch_keys=keys, config=config, **named)
    return data.batch["advantages"]


def assert_close(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=F64), rtol=0, atol=1e-12)


class TestRejected:
    """Rewards 1, 0, 0, 1 and both wrong ones rejected; a second prompt with 2, 0; padding."""

    keys = ("x_0_0", "x_1_0", "x_2_0", "x_3_0", "y_0_0", "y_1_0", f"{PAD}_0_0", f"{PAD}_1_0")
    rewards = (1.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0)
    mask = ((1, 1),) * 6 + ((0, 0),) * 2
    rejected = (1, 2)

    def advantages(self, estimator: str, **options: object) -> list[float]:
        """At the first token."""
        config = algorithm(estimator, **options)
        found = through_verl(self.keys, self.rewards, self.mask, config, self.rejected)
        assert found[[1, 2, 6, 7]].abs().sum() == 0
        assert found[:, 0].tolist() == found[:, 1].tolist()
        return found[:, 0]

    # x: mean 1/2, std √(4·(1/4)/3) = 1/√3. y: mean 1, std √2.
    x, y = 0.5 / (1 / math.sqrt(3) + EPS), 1 / (math.sqrt(2) + EPS)

    @pytest.mark.parametrize("estimator", ["grpo", "grpo_outcome", "dapo"])
    def test_their_rewards_stay_in_mean_and_std_as_with_verls_grpo(self, estimator: str) -> None:
        assert_close(self.advantages(estimator), [self.x, 0, 0, self.x, self.y, -self.y, 0, 0])

    def test_the_std_of_the_batch_counts_them_and_no_padding(self) -> None:
        # 1, 0, 0, 1, 2, 0: mean 2/3, squares 2·(1/9) + 3·(4/9) + 16/9 = 30/9, std √(30/9/5) = √(2/3).
        std = math.sqrt(2 / 3) + EPS
        found = self.advantages("grpo_outcome", scale_rewards="batch")
        assert_close(found, [0.5 / std, 0, 0, 0.5 / std, 1 / std, -1 / std, 0, 0])

    def test_the_tokens_of_a_prompt_are_those_that_are_left(self) -> None:
        # x has two responses of two tokens left, y both of its own: four tokens each.
        found = self.advantages("dapo_per_prompt")
        assert_close(found, [self.x / 4, 0, 0, self.x / 4, self.y / 4, -self.y / 4, 0, 0])

    def test_they_leave_the_group_of_gvpo(self) -> None:
        # Of x 1 and 1 are left, which are equal.
        assert_close(self.advantages("gvpo"), [0, 0, 0, 0, 1, -1, 0, 0])

    def test_their_steps_stay_in_the_pool(self) -> None:
        # x has the steps 1, 0, 0, 1 as above, each at the end of a response; y has 2 and 0.
        steps = BatchSteps(
            rewards=torch.tensor(self.rewards[:6], dtype=F64),
            row=torch.arange(6),
            end=torch.ones(6, dtype=torch.int64),
        )
        with passing(steps=steps):
            found = self.advantages("grpo_process")
        assert_close(found, [self.x, 0, 0, self.x, self.y, -self.y, 0, 0])


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[str], list[float], list[bool]]:
    """Keys, rewards and whether a row was rejected: prompts of two to four sessions of one to three outputs.

    Eighths, so that equal rewards have a mean equal to them and no std is tiny but for rounding.
    """
    rows = []
    for prompt in range(draw(st.integers(1, 3))):
        for session in range(draw(st.integers(2, 4))):
            reward = draw(st.integers(-16, 16)) / 8
            outputs = range(draw(st.sampled_from([1, 1, 2, 3])))
            rows += [(f"u{prompt}_{session}_{output}", reward, draw(st.booleans())) for output in outputs]
    keys, rewards, rejected = zip(*draw(st.permutations(rows)), strict=True)
    return list(keys), list(rewards), list(rejected)


@pytest.mark.parametrize("estimator", ["grpo_outcome", "dr_grpo"])
@given(batch=sessions())
@settings(derandomize=True, deadline=None, max_examples=100)
def test_equals_verls_grpo_whatever_was_rejected(estimator: str, batch: Any) -> None:
    # verl with every mask as it was, which is then laid over its advantages.
    keys, rewards, rejected = batch
    config = algorithm(estimator)
    whole = [[1, 1]] * len(keys)
    verls = config.copy()
    verls.adv_estimator = "grpo"
    left = [[0, 0] if gone else [1, 1] for gone in rejected]
    with passing(row_keys=keys):
        found = through_verl(keys, rewards, left, config)
    assert_close(found, through_verl(keys, rewards, whole, verls) * torch.tensor(left))


def test_last_outputs_by_hand() -> None:
    assert last_outputs(["u_0_1", "u_1_0", "u_0_10", "u_0_2", "v_0_0", "a_b_1_0"]) == [2, 1, 2, 2, 4, 5]
    assert last_outputs([]) == []


def test_padding_is_told_by_the_prompt_id_that_verl_makes_up() -> None:
    prompts = [PAD, "pad0", "padding", "0e4b", PAD + "0", 7, None]
    member, _ = row_roles(ESTIMATORS["grpo_outcome"], prompts, torch.device("cpu"))
    assert member.tolist() == [False, *[True] * 6]


def rollout(sessions_of: dict[str, list[tuple[float, int]]], rejected: list[str] = ()) -> dict[str, Any]:
    """Rows as verl's agent loops put them: prompt → (reward, outputs) of each session; two tokens a row."""
    rows = {}
    for prompt, own in sessions_of.items():
        for session, (reward, outputs) in enumerate(own):
            for output in range(outputs):
                key = f"{prompt}_{session}_{output}"
                rows[key] = {
                    **{"uid": prompt, "attention_mask": torch.ones(3, dtype=torch.int64)},
                    **{name: torch.arange(3) for name in ("input_ids", "position_ids")},
                    **{"prompts": torch.zeros(1, dtype=torch.int64), "responses": torch.arange(2)},
                    **{name: torch.ones(2, dtype=torch.int64) for name in ("response_mask", "loss_mask")},
                    **{name: torch.zeros(2) for name in ("old_log_probs", "ref_log_prob")},
                    "rm_scores": torch.tensor([0.0, reward]),
                    "rollout_log_probs": torch.full((2,), -3.0 if key in rejected else 0.0),
                }
    return rows


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The rows of a rollout after the trainer balanced them and computed their advantages."""

    def run(rows: dict[str, fsdp2_ranks.Row], *overrides: str) -> dict[str, fsdp2_ranks.Row]:
        store = Store()
        store.rows = rows
        config = composed([
            *("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=4"),
            *("actor_rollout_ref.actor.ppo_mini_batch_size=2", *overrides),
        ])  # fmt: skip
        trainer = trainer_with(monkeypatch, store, config, kl_ctrl_in_reward=FixedKLController(0.03))
        keys = list(rows)
        batch = KVBatchMeta(partition_id="train", keys=keys, tags=[{"seq_len": 3} for _ in keys])
        batch = trainer._balance_batch(batch, {})
        assert len(batch) == 8, "filled up with padding"
        for key in batch.keys:
            store.rows[key].setdefault("old_log_probs", torch.zeros(1))
            store.rows[key].setdefault("ref_log_prob", torch.zeros(1))
        trainer._compute_advantage(batch, {})
        return store.rows

    return run


def first(rows: dict[str, Any], field: str, keys: list[str]) -> list[float]:
    return [rows[key][field].reshape(-1)[0].item() for key in keys]


def test_gvpo_is_over_the_responses_that_are_left_in_estimator_and_group_size(trained: Any) -> None:
    # Of a, rewards 1, 0, 0.5, 0, the second is rejected: mean 0.5 of the three left. b keeps one of two.
    rows = rollout(
        {"a": [(1.0, 1), (0.0, 1), (0.5, 1), (0.0, 1)], "b": [(3.0, 1), (0.0, 1)]}, ["a_1_0", "b_0_0"]
    )
    reject = [f"+algorithm.rollout_correction.{key}='{value}'" for key, value in REJECT.items()]
    found = trained(rows, "+algo=gvpo", *(key.replace("+", "++", 1) for key in reject))
    keys = ["a_0_0", "a_1_0", "a_2_0", "a_3_0", "b_0_0", "b_1_0"]
    assert [found[key]["response_mask"].sum().item() for key in keys] == [2, 0, 2, 2, 0, 2]
    assert first(found, "advantages", keys) == [0.5, 0, 0, -0.5, 0, 0]
    assert first(found, "group_size", keys) == [3, 3, 3, 3, 1, 1]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # The sessions' rewards are 1, 0, 0.5: mean 0.5, std 0.5. All five rows have ten tokens.
        (["+algo=grpo"], 0.5 / (0.5 + EPS)),
        (["+algo=dr_grpo"], 0.5),
        (["+algo=grpo", "+algorithm.grpo_ext.scale_rewards=batch"], 0.5 / (0.5 + EPS)),
        # The estimator alone, with another loss.
        (["+algo=dapo", "algorithm.adv_estimator=dapo_per_prompt"], 0.5 / (0.5 + EPS) / 10),
    ],
)
def test_the_last_output_of_a_session_counts_and_all_learn_from_it(
    trained: Any, overrides: list[str], expected: float
) -> None:
    rows = rollout({"a": [(1.0, 3), (0.0, 1), (0.5, 1)]})
    found = trained(rows, "trainer.v1.trainer_mode=grpo_ext_sync", *overrides)
    keys = ["a_0_0", "a_0_1", "a_0_2", "a_1_0", "a_2_0"]
    # verl's rewards are in single precision.
    assert first(found, "advantages", keys) == pytest.approx([expected] * 3 + [-expected, 0], rel=1e-6)
    assert [found[key]["advantages"].sum().item() for key in found if key.startswith("pad")] == [0, 0, 0]


@pytest.mark.parametrize("algo", ["gvpo", "grpo_process"])
def test_gvpo_and_steps_know_no_session_of_several_outputs(trained: Any, algo: str) -> None:
    message = rf"adv_estimator={algo}: .* session a_0 .* by 3 outputs; valid is one, .* Type: \+algo.*=grpo"
    with pytest.raises(ValueError, match=message):
        trained(rollout({"a": [(1.0, 3), (0.0, 1)]}), f"+algo={algo}")


@pytest.mark.parametrize(
    "algo",
    [
        *([f"+algo={name}"] for name in ("kimi", "topr", "vespo", "gmpo", "gspo", "luspo")),
        ["+algo=dapo", *(f"{key}=dapo_per_prompt" for key in (ESTIMATOR, LOSS))],
    ],
)
def test_losses_of_whole_responses_or_prompts_know_none_either(trained: Any, algo: list[str]) -> None:
    rows = rollout({"a": [(1.0, 3), (0.0, 1)]})
    with pytest.raises(ValueError, match=r"loss_mode=\w+: .* session a_0 .* by 3 outputs; valid is one, "):
        trained(rows, "trainer.v1.trainer_mode=grpo_ext_sync", *algo)


def test_a_kl_in_the_reward_is_that_of_all_tokens_or_refused(trained: Any) -> None:
    sync = "trainer.v1.trainer_mode=grpo_ext_sync"
    found = trained(rollout({"a": [(1.0, 1), (0.0, 1)]}), sync, "+algo=rloo")
    assert first(found, "advantages", ["a_0_0", "a_1_0"]) == [1, -1]
    message = r"algorithm.use_kl_in_reward is true.* several outputs.* Type: algorithm.use_kl_in_reward=false"
    with pytest.raises(ValueError, match=message):
        trained(rollout({"a": [(1.0, 3), (0.0, 1)]}), sync, "+algo=rloo")
    without = "algorithm.kl_ctrl.kl_coef=0.0"
    found = trained(rollout({"a": [(1.0, 3), (0.0, 1)]}), sync, "+algo=rloo", without)
    assert first(found, "advantages", ["a_0_2", "a_1_0"]) == [1, -1]


class TestUnderVerlsOwnTrainer:
    """It shows estimators no keys, but the queue has them."""

    def advantages(self, monkeypatch: pytest.MonkeyPatch, name: str, queue: dict[str, Any]) -> Tensor:
        here = SimpleNamespace(get_client=object, kv_list=lambda partition: {partition: queue})
        monkeypatch.setitem(sys.modules, "transfer_queue", here)
        rewards, index = torch.tensor([[1.0], [0.0], [0.0]]), np.array(["u", "u", "v"], dtype=object)
        found, _ = get_adv_estimator_fn(name)(rewards, torch.ones(3, 1), index, algorithm(name))
        return found

    def test_several_outputs_are_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = dict.fromkeys(["u", "v", "u_0_0", "u_0_1", "v_0_0"])
        with pytest.raises(ValueError, match=r"grpo_outcome: .* session u_0 .* by 2 outputs.*trainer_mode="):
            self.advantages(monkeypatch, "grpo_outcome", queue)
        with pytest.raises(ValueError, match=r"adv_estimator=gvpo: .* valid is one, because its loss"):
            self.advantages(monkeypatch, "gvpo", queue)

    def test_one_output_each_passes_and_other_prompts_may_have_more(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = dict.fromkeys(["u", "v", "w", "u_0_0", "u_1_0", "v_0_0", "w_0_0", "w_0_1"])
        assert self.advantages(monkeypatch, "dr_grpo", queue).tolist() == [[0.5], [-0.5], [0.0]]

    def test_where_there_is_no_queue_none_is_started(self) -> None:
        # `transfer_queue` is imported here and has no client; making one would start Ray.
        dr_grpo = get_adv_estimator_fn("dr_grpo")
        found, _ = dr_grpo(torch.tensor([[1.0], [0.0]]), torch.ones(2, 1), ["u", "u"])
        assert found.tolist() == [[0.5], [-0.5]]
        assert not ray.is_initialized()
