"""Test the fit of implicit rewards on responses that stay the same; a dictionary for the queue."""

import math
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from test_gold_responses import Compute, Queue, changed, computed_by, log_probs_of
from transfer_queue import KVBatchMeta
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin import trainer_modes
from grpo_verl_ext.verl_plugin.batch import fields as rollout_batch
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.measure.checks import check_rewarded_responses
from grpo_verl_ext.verl_plugin.measure.fixed_responses import PARTITION, FixedResponse
from grpo_verl_ext.verl_plugin.measure.rewarded_responses import RewardedRows

SECTION = "algorithm.grpo_ext.rewarded_responses"
BETA = 0.7
ROWS = [("1+2=?", ["3", "5", "12"], [1.0, 0.0, -0.5]), ("4+4=?", ["8", "88"], [2.0, 0.25])]


def write(file: Path, rows: list[tuple[str, Any, Any]]) -> Path:
    pandas.DataFrame(
        {
            "prompt": [[{"role": "user", "content": prompt}] for prompt, *_ in rows],
            "extra_info": [{"responses": texts, "rewards": rewards} for _, texts, rewards in rows],
        }
    ).to_parquet(file)
    return file


@pytest.fixture(scope="module")
def plain(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    folder = tmp_path_factory.mktemp("data")
    made = composed([
        "+algo=gvpo", "algorithm.grpo_ext.gvpo_anchor=ref", "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.actor.policy_loss.gvpo_beta={BETA}",
        f"actor_rollout_ref.model.path={policy}", "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "data.max_prompt_length=32", "data.max_response_length=16",
        f"+{SECTION}.files={write(folder / 'rewarded.parquet', ROWS)}", f"+data.cache_dir={folder / 'cache'}",
    ])  # fmt: skip
    OmegaConf.set_struct(made, False)
    return made


@pytest.fixture(scope="module")
def model(policy: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(policy).double().eval()


@pytest.fixture(scope="module")
def reference(policy: Path) -> torch.nn.Module:
    """Another model than the policy."""
    made = AutoModelForCausalLM.from_pretrained(policy).double().eval()
    with torch.no_grad():
        made.lm_head.weight.mul_(0.9)
    return made


def rows_of(config: DictConfig) -> RewardedRows:
    options = Options.from_config(config.algorithm).rewarded_responses
    assert options is not None
    return RewardedRows(options, config)


def line(points: list[list[tuple[float, float]]]) -> tuple[float, float]:
    """Slope and R² of one line through all prompts' (R, f), each less its means, weighed by 1 / (k − 1)."""
    cov = var_r = var_f = 0.0
    for of_prompt in points:
        k = len(of_prompt)
        mean_r, mean_f = (math.fsum(each) / k for each in zip(*of_prompt, strict=True))
        for reward, implicit in of_prompt:
            cov += (reward - mean_r) * (implicit - mean_f) / (k - 1)
            var_r += (reward - mean_r) ** 2 / (k - 1)
            var_f += (implicit - mean_f) ** 2 / (k - 1)
    return cov / var_r, cov**2 / (var_r * var_f)


def stepped(
    config: DictConfig,
    monkeypatch: pytest.MonkeyPatch,
    policy: Compute,
    reference: Compute,
    *,
    step: int = 1,
    adapter: bool = False,
) -> SimpleNamespace:
    """A trainer's step around verl's own, on two ranks; with an adapter the reference is the actor."""
    queue, asked = Queue(), list[KVBatchMeta]()

    def by_actor(batch: KVBatchMeta) -> None:
        asked.append(batch)
        compute = reference if batch.extra_info.get("no_lora_adapter", False) else policy
        compute(queue, batch)

    def by_reference(batch: KVBatchMeta) -> None:
        asked.append(batch)
        reference(queue, batch)

    monkeypatch.setattr(rollout_batch, "tq", queue)
    monkeypatch.setattr(PPOTrainer, "_init_dataloader", lambda _: None)
    batch = KVBatchMeta(partition_id="train", keys=["p_0_0"], tags=[{}])
    queue.rows["p_0_0"] = {"extra_fields": {}}
    monkeypatch.setattr(PPOTrainer, "step", lambda *_: batch)
    trainer = object.__new__(trainer_modes.GroupTrainerSync)
    trainer.config, trainer.global_steps, trainer.ref_in_actor = config, step, adapter
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0, 1]}, compute_log_prob=by_actor)
    trainer.ref_policy_wg = SimpleNamespace(compute_ref_log_prob=by_reference)
    trainer._init_dataloader()
    metrics: dict[str, Any] = {}
    timing: dict[str, float] = {}
    assert trainer.step(metrics, timing) is batch
    return SimpleNamespace(metrics=metrics, timing=timing, queue=queue, asked=asked)


def expected(config: DictConfig, policy: torch.nn.Module, reference: torch.nn.Module) -> tuple[float, float]:
    """By the definition, from log-probs of one response at a time."""
    rows = iter(rows_of(config).rows)
    points = []
    for _, texts, rewards in ROWS:
        of_prompt = []
        for reward, row in zip(rewards, islice(rows, len(texts)), strict=True):
            ratio = log_probs_of(policy, row, 1.0).sum() - log_probs_of(reference, row, 1.0).sum()
            of_prompt.append((reward, BETA * ratio.item()))
        points.append(of_prompt)
    return line(points)


@pytest.mark.parametrize("adapter", [False, True])
def test_slope_and_r2_of_both_models(
    plain: DictConfig,
    model: torch.nn.Module,
    reference: torch.nn.Module,
    adapter: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = stepped(plain, monkeypatch, computed_by(model), computed_by(reference), adapter=adapter)
    slope, r2 = expected(plain, model, reference)
    assert slope != pytest.approx(0, abs=1e-4)
    assert found.metrics == {
        "rewarded_response/fit_slope": pytest.approx(slope, rel=1e-9),
        "rewarded_response/fit_r2": pytest.approx(r2, rel=1e-9),
    }
    assert found.timing.keys() == {"rewarded_response"}
    # Five rows are filled up to six, for two ranks, and nothing is left in the queue.
    assert [(len(batch), batch.partition_id) for batch in found.asked] == [(6, PARTITION)] * 2
    assert found.queue.rows.keys() == {"p_0_0"}


def test_a_policy_at_the_minimiser_has_slope_and_r2_of_one(
    plain: DictConfig, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """log π = log π_ref + R/β + a number of each prompt, which no policy but the optimum has."""
    rewards = iter(rows_of(plain).rewards.tolist())
    factor = iter([3.0] * 3 + [-2.0] * 2)

    def optimal(queue: Queue, batch: KVBatchMeta) -> None:
        computed_by(model)(queue, batch)
        for key in batch.keys[:5]:
            fields = queue.rows[key]
            # the first token of the response
            fields["log_probs"][len(fields["prompts"]) - 1] += next(rewards) / BETA + next(factor)

    found = stepped(plain, monkeypatch, optimal, computed_by(model))
    assert found.metrics == {
        "rewarded_response/fit_slope": pytest.approx(1.0, rel=1e-9),
        "rewarded_response/fit_r2": pytest.approx(1.0, rel=1e-9),
    }


@pytest.mark.parametrize(("step", "measured"), [(1, False), (3, True)])
def test_every_few_steps(
    plain: DictConfig,
    model: torch.nn.Module,
    step: int,
    measured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = changed(plain, algorithm__grpo_ext__rewarded_responses__freq=3)
    found = stepped(config, monkeypatch, computed_by(model), computed_by(model), step=step)
    assert bool(found.metrics) == bool(found.timing) == bool(found.asked) == measured


class TestRows:
    def test_texts_end_with_the_end_of_turn_and_token_ids_stay_what_they_are(
        self, plain: DictConfig, policy: Path, tmp_path: Path
    ) -> None:
        tokenizer = AutoTokenizer.from_pretrained(policy)
        texts = rows_of(plain)
        assert [tokenizer.decode(row.response_ids[:-1]) for row in texts.rows] == ["3", "5", "12", "8", "88"]
        assert {row.response_ids[-1] for row in texts.rows} == {tokenizer.eos_token_id}
        assert texts.rewards.tolist() == [1.0, 0.0, -0.5, 2.0, 0.25]
        assert texts.prompt.tolist() == [0, 0, 0, 1, 1]
        file = write(tmp_path / "ids.parquet", [("1+2=?", [[7, 8], [9]], [1, 0])])
        (first, second) = rows_of(
            changed(plain, algorithm__grpo_ext__rewarded_responses__files=str(file))
        ).rows
        assert first == FixedResponse(texts.rows[0].prompt_ids, [7, 8])
        assert second.response_ids == [9]

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            (
                (["3", "4"], [1.0]),
                r"row 0 of .*\.files has 2 responses at extra_info\.responses and \[1\.0\]",
            ),
            ((["3"], None), r"has 1 responses at .* and \[\] there; valid is a number for each response"),
            (([], []), r"has 0 responses at extra_info\.responses"),
            ((["3", "4"], [1.0, math.nan]), r"and \[1\.0, None\] there"),
            ((["3" * 20, "4"], [1.0, 0.0]), r"data\.max_response_length is 16, but row 0 of .* of 21 tokens"),
        ],
    )
    def test_rows_that_cannot_be_measured_are_named(
        self, plain: DictConfig, row: tuple[Any, Any], message: str, tmp_path: Path
    ) -> None:
        file = write(tmp_path / "file.parquet", [("1+2=?", *row)])
        with pytest.raises(SettingError, match=message):
            rows_of(changed(plain, algorithm__grpo_ext__rewarded_responses__files=str(file)))


class TestBeforeTraining:
    def test_what_fits_passes(self, plain: DictConfig) -> None:
        check_rewarded_responses(plain)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"algorithm__grpo_ext__rewarded_responses__rewards_key": "extra_info.scores"},
                r"rewards_key is extra_info\.scores, but .* has no such column",
            ),
            (
                {"algorithm__grpo_ext__rewarded_responses__files": None},
                rf"{SECTION}\.files is null, but .* Type: '?\+{SECTION}\.files=<file>",
            ),
        ],
    )
    def test_a_wrong_setting_is_refused(
        self, plain: DictConfig, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(SettingError, match=message):
            check_rewarded_responses(changed(plain, **changes))
