"""Test the reference refresh: settings, arithmetic on real shards, refusals."""

import math
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import pytest
import reference_sync_ranks
import torch
from omegaconf import OmegaConf
from processes import run_ranks
from queue_store import Store, trainer_with
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from grpo_verl_ext.preflight.tested_values import untested
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.measure.trainer import MeasureMixin
from grpo_verl_ext.verl_plugin.reference import parts
from grpo_verl_ext.verl_plugin.wire import Field


@pytest.mark.ci
def test_mixing_and_resuming_what_verls_engine_sharded(tmp_path):
    """FSDP1 and FSDP2, all variants on one pair of processes."""
    run_ranks(reference_sync_ranks.run_rank, reference_sync_ranks.WORLD_SIZE, str(tmp_path), folder=tmp_path)


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_every_second_step_refreshes_it_and_a_training_that_resumes_reads_it(monkeypatch, step):
    for name in ("step", "_load_checkpoint"):
        monkeypatch.setattr(PPOTrainer, name, lambda *_: None)
    monkeypatch.setattr(parts, "actor_folder", MagicMock())
    mixed: Any = type("Trainer", (parts.ReferenceSyncTrainerMixin, PPOTrainer), {})
    mixed.__abstractmethods__ = frozenset()
    own = object.__new__(mixed)
    own.config = OmegaConf.create({"algorithm": {"grpo_ext": {"ref_model_sync_steps": 2}}})
    own.global_steps, own.actor_rollout_wg, own.use_reference_policy = step, MagicMock(), False
    own._load_checkpoint()
    assert own.actor_rollout_wg.load_reference.called is (step > 0)
    own.step({}, {})
    assert step == 0 or own.actor_rollout_wg.refresh_reference.called is (step == 2)


@pytest.mark.parametrize("module", [[torch.nn.Linear(1, 1)], torch.nn.Linear(1, 1)])
def test_a_model_that_neither_fsdp_sharded_is_refused(module, tmp_path):
    """Megatron's and torchtitan's engines have a list; the driver's checks refuse them before a rollout."""
    named = rf"is a {type(module).__name__}, which the reference refresh cannot read; valid are .*Type: "
    with pytest.raises(ValueError, match=named):
        reference_sync_ranks.worker(module, module).refresh_reference(1.0)
    with pytest.raises(ValueError, match=named):
        reference_sync_ranks.worker(module).save_reference(str(tmp_path))
    assert not list(tmp_path.rglob("*.pt"))


WRONG = {"sync_steps": (0, 2.5), "mixup_alpha": (0, 1.5, math.nan)}


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
        """What is logged, where the rows of ``stored`` are stored responses."""
        store = Store()
        for row, values in enumerate(zip(self.OLD, self.REF, self.MASK, strict=True)):
            fields = zip(
                ("old_log_probs", "ref_log_prob", "response_mask"), map(torch.tensor, values), strict=True
            )
            origin = {Field.STORED_ORIGIN: {"step": 1}} if row in stored else {}
            store.rows[f"prompt_{row}_0"] = {**dict(fields), "extra_fields": origin}
        batch, metrics = store.batch(), {}
        monkeypatch.setattr(MeasureMixin, "step", lambda *_: batch)
        config = OmegaConf.create({"algorithm": {"grpo_ext": options}})
        own = trainer_with(monkeypatch, store, config, use_reference_policy=True)
        assert own.step(metrics, {}) is batch
        return metrics

    def test_means_over_the_tokens_of_the_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.metrics(monkeypatch)
        ratios = [0.0, -1.0, 2.0, 0.0, -1.0]  # p − q; the second token of the last row is a tool's
        wanted = {
            "k1": 0.0,
            "k2": (0.5 + 2.0 + 0.5) / 5,
            "k3": sum(math.exp(-ratio) + ratio - 1 for ratio in ratios) / 5,
        }
        assert found == {f"actor/ref_kl_{name}": pytest.approx(mean) for name, mean in wanted.items()}

    def test_stored_responses_are_no_samples_of_the_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.metrics(monkeypatch, stored=[0, 2])
        # Of the one token of the second row p − q is 2.
        wanted = {"k1": 2.0, "k2": 2.0, "k3": math.exp(-2) + 1}
        assert found == {f"actor/ref_kl_{name}": pytest.approx(mean) for name, mean in wanted.items()}

    def test_without_any_sample_or_turned_off_nothing_is_logged(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.metrics(monkeypatch, stored=[0, 1, 2]) == {}
        assert self.metrics(monkeypatch, ref_kl_metrics=False) == {}
