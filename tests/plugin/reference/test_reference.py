"""Test the reference refresh: settings, arithmetic on real shards, refusals."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import reference_sync_ranks
import torch
from omegaconf import OmegaConf
from processes import run_ranks
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from grpo_verl_ext.preflight.tested import untested
from grpo_verl_ext.verl_plugin import trainer_modes
from grpo_verl_ext.verl_plugin.batch import fields as rollout_batch
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.wire import Field


@pytest.mark.long
def test_mixing_and_resuming_what_verls_engine_sharded(tmp_path):
    """FSDP1 and FSDP2, all variants on one pair of processes."""
    run_ranks(reference_sync_ranks.run_rank, reference_sync_ranks.WORLD_SIZE, str(tmp_path), folder=tmp_path)


@pytest.mark.parametrize("module", [[torch.nn.Linear(1, 1)], torch.nn.Linear(1, 1)])
def test_a_model_that_neither_fsdp_sharded_is_refused(module, tmp_path):
    """Megatron's and torchtitan's engines have a list; the driver's checks refuse them before a rollout."""
    named = rf"is a {type(module).__name__}, which the reference refresh cannot read; valid are .*Type: "
    with pytest.raises(ValueError, match=named):
        reference_sync_ranks.worker(module, module).refresh_reference(1.0)
    with pytest.raises(ValueError, match=named):
        reference_sync_ranks.worker(module).save_reference(str(tmp_path))
    assert not list(tmp_path.rglob("*.pt"))


WRONG = {"sync_steps": (0, -1, 2.5), "mixup_alpha": (0, 1.5, math.nan)}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, own in WRONG.items() for value in own])
def test_wrong_numbers(key, value):
    with pytest.raises(ValueError, match=rf"ref_model_{key} is {value}; valid is an? .*Type: "):
        Options.from_config({"grpo_ext": {f"ref_model_{key}": value}})


REF, ALPHA = "actor_rollout_ref.ref", "++algorithm.grpo_ext.ref_model_mixup_alpha"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ([], []),
        (["~algorithm.grpo_ext.ref_model_sync_steps", f"{ALPHA}=0.6"], ["ref_model_sync_steps"]),
        ([f"{REF}.fsdp_config.fsdp_size=4"], ["fsdp_size"]),
        ([f"{REF}.fsdp_config.use_orig_params=true"], ["use_orig_params"]),
        ([f"{REF}.fsdp_config.wrap_policy.min_num_params=9"], ["wrap_policy"]),
        # FSDP2 has neither
        (["actor_rollout_ref.actor.strategy=fsdp2", f"{REF}.fsdp_config.use_orig_params=true"], []),
    ],
)
def test_a_reference_that_cannot_follow_the_policy_is_found(changes, found):
    follows = ["+algo=grpo", "actor_rollout_ref.rollout.name=vllm", "trainer.v1.trainer_mode=grpo_ext_sync"]
    config = composed([*follows, "++algorithm.grpo_ext.ref_model_sync_steps=4", *changes])
    own = [each for each in untested(config) if each.check == "reference"]
    assert [each.problem.key.rpartition(".")[2] for each in own] == found


class TestMetrics:
    """KL to the reference, from rows of different lengths; without verl's own method, which asks workers."""

    OLD = ([-1.0, -2.0], [-0.5], [-1.5, -1.0, -3.0])
    REF = ([-1.0, -1.0], [-2.5], [-1.5, -9.0, -2.0])
    MASK = ([1, 1], [1], [1, 0, 1])

    def metrics(
        self, monkeypatch: pytest.MonkeyPatch, stored: Sequence[int] = (), **options: object
    ) -> dict[str, Any]:
        """What is logged; and under ``asked`` the fields that were fetched for it.

        Args:
            stored: rows that are stored responses.
        """
        asked: list[str] = []

        def ragged(rows: tuple[list[float], ...]) -> Tensor:
            return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)

        def kv_batch_get(*, select_fields: list[str], **_: object) -> TensorDict:
            asked.extend(select_fields)
            rows = {"old_log_probs": self.OLD, "ref_log_prob": self.REF, "response_mask": self.MASK}
            found = TensorDict({name: ragged(own) for name, own in rows.items()}, batch_size=3)
            origins = [{Field.STORED_ORIGIN: {"step": 1}} if row in stored else {} for row in range(3)]
            tu.assign_non_tensor_stack(found, "extra_fields", origins)
            return found

        monkeypatch.setattr(rollout_batch, "tq", SimpleNamespace(kv_batch_get=kv_batch_get))
        monkeypatch.setattr(PPOTrainer, "_compute_ref_log_prob", lambda _self, batch, metrics: batch)
        trainer = object.__new__(trainer_modes.GroupTrainerSync)
        trainer.config = OmegaConf.create({"algorithm": {"grpo_ext": options}})
        batch, metrics = SimpleNamespace(keys=["a", "b", "c"], partition_id="train", tags=[{}] * 3), {}
        assert trainer._compute_ref_log_prob(batch, metrics) is batch
        return metrics | {"asked": asked}

    def test_means_over_the_tokens_of_the_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.metrics(monkeypatch)
        ratios = [0.0, -1.0, 2.0, 0.0, -1.0]  # p − q; the second token of the last row is a tool's
        wanted = {
            "k1": 0.0,
            "k2": (0.5 + 2.0 + 0.5) / 5,
            "k3": sum(math.exp(-ratio) + ratio - 1 for ratio in ratios) / 5,
        }
        assert found.pop("asked") == ["old_log_probs", "ref_log_prob", "response_mask", "extra_fields"]
        assert found == {f"actor/ref_kl_{name}": pytest.approx(mean) for name, mean in wanted.items()}

    def test_stored_responses_are_no_samples_of_the_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.metrics(monkeypatch, stored=[0, 2])
        # Of the one token of the second row p − q is 2.
        wanted = {"k1": 2.0, "k2": 2.0, "k3": math.exp(-2) + 1}
        found.pop("asked")
        assert found == {f"actor/ref_kl_{name}": pytest.approx(mean) for name, mean in wanted.items()}

    def test_without_any_sample_nothing_is_logged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.metrics(monkeypatch, stored=[0, 1, 2]).keys() == {"asked"}

    def test_turned_off_nothing_is_fetched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.metrics(monkeypatch, ref_kl_metrics=False) == {"asked": []}
