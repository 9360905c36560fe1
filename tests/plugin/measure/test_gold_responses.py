"""Test wanted responses by teacher forcing, and the means of training rewards; a dictionary for the queue."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import fsdp2_ranks
import numpy as np
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from processes import run_ranks
from queue_store import Store, trainer_with
from test_request_seeds import Server, agent_loop
from torch import Tensor
from transfer_queue import KVBatchMeta
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from grpo_verl_ext.tasks.chain_sum.problems import response, rows
from grpo_verl_ext.tasks.folders import write_rows
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.measure import trainer as measure
from grpo_verl_ext.verl_plugin.wire import Field

PROBLEMS = [(3, 4), (1, 2, 9), (7, 7, 7, 7), (0, 5), (9, 9, 9)]
Row = dict[str, Any]
SECTION = "algorithm.grpo_ext.gold_responses"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "test.parquet"
    write_rows(file, rows(PROBLEMS, "test"))
    return file


@pytest.fixture(scope="module")
def plain(policy: Path, file: Path, tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    made = composed([
        "+algo=grpo", "trainer.v1.trainer_mode=grpo_ext_sync", f"{ROLLOUT}.name=vllm",
        f"actor_rollout_ref.model.path={policy}", "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "data.max_prompt_length=32", "data.max_response_length=64", f"+{SECTION}.files={file}",
        f"+data.cache_dir={tmp_path_factory.mktemp('cache')}",
        "+actor_rollout_ref.model.override_config={attn_implementation: sdpa}",
    ])  # fmt: skip
    OmegaConf.set_struct(made, False)
    return made


def changed(plain: DictConfig, **changes: object) -> DictConfig:
    made = plain.copy()
    for key, value in changes.items():
        OmegaConf.update(made, key.replace("__", "."), value)
    return made


class TestRows:
    def test_prompts_have_the_tokens_that_verls_agent_loop_sends(
        self, plain: DictConfig, policy: Path
    ) -> None:
        server, tokenizer = Server(), AutoTokenizer.from_pretrained(policy)

        async def run(prompt: list[dict[str, str]]) -> None:
            await agent_loop(SingleTurnAgentLoop, plain, server, tokenizer).run({}, raw_prompt=prompt)

        for terms in PROBLEMS:
            asyncio.run(run(rows([terms], "test")[0]["prompt"]))
        found = [gold["prompts"].tolist() for gold in measure._read_rows(plain)]
        assert found == [asked["prompt_ids"] for asked in server.asked]

    def test_a_response_has_its_text_and_the_end_of_turn(self, plain: DictConfig, policy: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(policy)
        for terms, gold in zip(PROBLEMS, measure._read_rows(plain), strict=True):
            assert gold["responses"][-1] == tokenizer.eos_token_id
            assert tokenizer.decode(gold["responses"][:-1]) == response(terms)

    @pytest.mark.parametrize(("samples", "count"), [(2, 2), (None, 5), (256, 5)])
    def test_the_first_rows_of_all_files_are_measured(
        self, plain: DictConfig, file: Path, samples: int | None, count: int
    ) -> None:
        """In their order, though the training's own data is shuffled."""
        config = changed(plain, data__shuffle=True, data__seed=3)
        config.algorithm.grpo_ext.gold_responses = {"files": [str(file)], "samples": samples}
        first = measure._read_rows(plain)[:count]
        for found, expected in zip(measure._read_rows(config), first, strict=True):
            assert torch.equal(found["input_ids"], expected["input_ids"])

    def test_a_row_without_the_response_is_named(self, plain: DictConfig) -> None:
        config = changed(plain, algorithm__grpo_ext__gold_responses__response_key="extra_info.answer")
        message = r"is extra_info\.answer, but row 0 of .*\.files has None there; valid is a text"
        with pytest.raises(SettingError, match=message):
            measure._read_rows(config)

    def test_a_file_without_a_row_and_a_model_of_images_are_named(
        self, plain: DictConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(measure, "create_rl_dataset", lambda *_, **__: [])
        with pytest.raises(SettingError, match=rf"{SECTION}\.files is .*, but there is no row to measure"):
            measure._read_rows(plain)
        model = SimpleNamespace(processor=object())
        monkeypatch.setattr(measure, "omega_conf_to_dataclass", lambda _: model)
        with pytest.raises(SettingError, match=rf"model\.path is .*, but it takes more .* Type: ~{SECTION}"):
            measure._read_rows(plain)


def log_probs_of(model: torch.nn.Module, gold: Row, temperature: float) -> Tensor:
    """log π of the response's tokens, one row at a time, in float64."""
    logits = model(gold["input_ids"][None]).logits[0].double()
    log_p = (logits[len(gold["prompts"]) - 1 : -1] / temperature).log_softmax(-1)
    return log_p.gather(-1, gold["responses"].unsqueeze(-1)).squeeze(-1)


Compute = Callable[[Store, KVBatchMeta], None]


@pytest.fixture
def stepped(plain: DictConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer's step around verl's own: its metrics, timings and queue."""

    def run(
        compute: Compute, reports: Any = ({},), step=1, ranks=1, stored: Any = (), **changes: Any
    ) -> SimpleNamespace:
        queue = Store()
        monkeypatch.setattr(PPOTrainer, "_init_dataloader", lambda _: None)
        keys = [f"p_{number}_0" for number in range(len(reports))]
        for key, extra in zip(keys, reports, strict=True):
            origin = {Field.STORED_ORIGIN: {"log_probs": None}} if key in stored else {}
            queue.rows[key] = {"extra_fields": origin | ({"reward_extra_info": extra} if extra else {})}
        batch = KVBatchMeta(partition_id="train", keys=keys, tags=[{"is_padding": False} for _ in keys])
        monkeypatch.setattr(PPOTrainer, "step", lambda *_: batch)
        trainer = trainer_with(monkeypatch, queue, changed(plain, **changes), ranks, global_steps=step)
        trainer.actor_rollout_wg.compute_log_prob = lambda batch: compute(queue, batch)
        trainer._init_dataloader()
        metrics: dict[str, Any] = {}
        timing: dict[str, float] = {}
        assert trainer.step(metrics, timing) is batch
        del metrics["training/lost_responses"]
        return SimpleNamespace(metrics=metrics, timing=timing, queue=queue, rows=trainer.gold_rows)

    return run


def computed_by(model: torch.nn.Module, asked: list[KVBatchMeta] | None = None) -> Compute:
    """What an actor writes back: log p of the next token at each, something else behind the last."""

    def compute(queue: Store, batch: KVBatchMeta) -> None:
        if asked is not None:
            asked.append(batch)
        for key in batch.keys:
            fields = queue.rows[key]
            own = log_probs_of(model, fields, batch.extra_info["temperature"])
            before = torch.full((len(fields["prompts"]) - 1,), math.nan)
            fields["log_probs"] = torch.cat([before, own, torch.tensor([math.nan])]).detach()

    return compute


def likely(queue: Store, batch: KVBatchMeta) -> None:
    """An actor under which every response has the probability 1/2."""
    for key in batch.keys:
        fields = queue.rows[key]
        own = math.log(0.5) / len(fields["responses"])
        fields["log_probs"] = torch.full((len(fields["input_ids"]),), own)


@pytest.fixture(scope="module")
def model(policy: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(policy).double().eval()


def expected(model: torch.nn.Module, rows: list[Row], temperature: float = 1.0) -> tuple[float, float]:
    """Means of the probabilities, as products over tokens, and of their logarithms."""
    own = [log_probs_of(model, gold, temperature) for gold in rows]
    products = [math.prod(tokens.exp().tolist()) for tokens in own]
    return math.fsum(products) / len(rows), math.fsum(tokens.sum().item() for tokens in own) / len(rows)


def test_probabilities_of_what_verls_worker_computes(
    stepped: Any, model: torch.nn.Module, policy: Path, tmp_path: Path
) -> None:
    """Two ranks of verl's FSDP2 engine with micro-batches of two; five rows are filled up to eight."""

    def compute(queue: Store, batch: KVBatchMeta) -> None:
        assert len(batch) == 8
        names = ("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids")
        parts = [
            [{name: queue.rows[key][name] for name in names} for key in part.keys] for part in batch.chunk(2)
        ]
        variant = {
            "dtype": "single", "micro_batch": 2, "worker": "verl", "gradient_checkpointing": False,
            "lora_rank": 0,
        }  # fmt: skip
        rows = {"gold": {"ranks": parts, "extra_info": batch.extra_info}}
        torch.save(
            {"model": str(policy), "variants": {"gold": variant}, "batches": rows}, tmp_path / "job.pt"
        )
        run_ranks(fsdp2_ranks.run_inference, 2, tmp_path, folder=tmp_path)
        found = torch.load(tmp_path / "result.pt")["gold"]
        for key, log_probs in zip(batch.keys, found, strict=True):
            queue.rows[key]["log_probs"] = log_probs

    sizes = {"log_prob_use_dynamic_bsz": False, "log_prob_micro_batch_size_per_gpu": 2, "temperature": 0.8}
    found = stepped(
        compute, ranks=2, **{f"actor_rollout_ref__rollout__{name}": value for name, value in sizes.items()}
    )
    probability, log_prob = expected(model, found.rows, temperature=0.8)
    # Sums of about 30 log-probs in single precision, each of about 5 nats: 30 · 5 · 6e-8.
    assert found.metrics["gold_response/log_prob"] == pytest.approx(log_prob, abs=1e-5)
    assert found.metrics["gold_response/probability"] == pytest.approx(probability, rel=1e-5)
    assert found.timing.keys() == {"gold_response"}


class TestStep:
    def test_the_first_rows_alone_count_and_the_queue_is_left_empty(
        self, stepped: Any, model: torch.nn.Module
    ) -> None:
        asked: list[KVBatchMeta] = []
        found = stepped(computed_by(model, asked), ranks=4)
        assert found.metrics == {
            "gold_response/probability": pytest.approx(expected(model, found.rows)[0], rel=1e-12),
            "gold_response/log_prob": pytest.approx(expected(model, found.rows)[1], rel=1e-12),
        }
        (batch,) = asked
        assert (len(batch), batch.partition_id) == (8, "grpo_ext_gold_responses")
        assert batch.extra_info == {"calculate_entropy": False, "compute_loss": False, "temperature": 1.0}
        assert found.queue.rows.keys() == {"p_0_0"}, "of the rollout"
        assert found.queue.cleared == ["grpo_ext_gold_responses"]

    def test_fewer_rows_than_ranks(self, stepped: Any, model: torch.nn.Module) -> None:
        found = stepped(computed_by(model), ranks=7, algorithm__grpo_ext__gold_responses__samples=2)
        assert len(found.rows) == 2
        wanted = expected(model, found.rows)[1]
        assert found.metrics["gold_response/log_prob"] == pytest.approx(wanted, rel=1e-12)

    @pytest.mark.parametrize(("step", "measured"), [(4, False), (6, True)])
    def test_every_few_steps(self, stepped: Any, model: torch.nn.Module, step: int, measured: bool) -> None:
        found = stepped(computed_by(model), step=step, algorithm__grpo_ext__gold_responses__freq=3)
        assert bool(found.metrics) == bool(found.timing) == measured

    def test_without_the_option_nothing_is_read_or_asked(self, stepped: Any) -> None:
        def refuse(*_: Any) -> None:
            raise AssertionError

        found = stepped(refuse, algorithm__grpo_ext__gold_responses=None)
        assert (found.metrics, found.rows) == ({}, [])

    def test_right_answers_by_other_responses_are_added(self, stepped: Any) -> None:
        reports = [
            {"score": 2.8, "acc": 1.0, "gold": 1.0},
            {"score": 2.8, "acc": 1.0, "gold": 0.0},
            {"score": 0.8, "acc": 0.0, "gold": 0.0, "rate": math.nan},
            {"score": 0.0, "acc": 0.0, "gold": 0.0},
            {"acc": 1.0, "gold": 0.0},  # stored, so that the policy has not sampled it
            {"acc": 1.0},
        ]
        found = stepped(likely, reports, stored=("p_4_0",))
        assert found.metrics["gold_response/probability"] == pytest.approx(0.5, rel=1e-6)
        assert found.metrics["gold_response/right"] == pytest.approx(0.75, rel=1e-6)
        assert found.metrics["training_reward/acc"] == pytest.approx(4 / 6)
        assert found.metrics["training_reward/gold"] == pytest.approx(1 / 5)
        assert found.metrics["training_reward/score"] == pytest.approx(1.6)
        assert "training_reward/rate" not in found.metrics

    def test_where_the_reward_does_not_say_it_no_share_is_made_up(
        self, stepped: Any, model: torch.nn.Module
    ) -> None:
        found = stepped(computed_by(model), [{"acc": 1.0}, {}])
        assert "gold_response/right" not in found.metrics
        assert found.metrics["training_reward/acc"] == 1.0


class TestTrainingRewards:
    def test_numbers_are_averaged_over_the_reports_that_have_them(self) -> None:
        reports = [
            {"acc": True, "score": 1, "length": np.float32(3.0), "text": "a", "steps": [1.0], "none": None},
            {"acc": np.bool_(False), "score": 0.5, "extra": 7},
        ]
        assert measure._by_key(fmean, reports) == {"acc": 0.5, "score": 0.75, "length": 3.0, "extra": 7.0}
        assert measure._by_key(fmean, []) == {}

    def test_padding_and_all_but_the_last_output_of_a_session_are_left_out(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        queue = Store()
        scores = {"a_0_0": 5.0, "a_0_1": 1.0, "a_1_0": 0.0, "b_0_0": 5.0, "b_1_0": 2.0, "pad_0_0": 9.0}
        for key, score in scores.items():
            queue.rows[key] = {"extra_fields": {"reward_extra_info": {"score": score}}}
        tags = [{"is_padding": key.startswith("pad")} for key in scores]
        batch = KVBatchMeta(partition_id="train", keys=[*scores], tags=tags)
        monkeypatch.setattr(PPOTrainer, "step", lambda *_: batch)
        whole = {"data": {"train_batch_size": 3}, "actor_rollout_ref": {"rollout": {"n": 2}}}
        config = OmegaConf.create({"algorithm": {"grpo_ext": {"lost_responses": 0.4}}, **whole})
        trainer = trainer_with(monkeypatch, queue, config)
        metrics: dict[str, Any] = {}
        for _ in range(2):
            trainer.step(metrics, {})
        assert capsys.readouterr().err.count("2 of 6 responses of step 1 are lost") == 1
        config.algorithm.grpo_ext.lost_responses = 0.3
        with pytest.raises(RuntimeError, match=r"are lost; .* Valid is a share of at most 0\.3"):
            trainer.step({}, {})
        # of 1, 0 and 5, 2: mean 2, squared deviations 1, 4 and 9, 0; within prompts 0.5 and 1.5
        assert metrics == {
            "training/lost_responses": 2,
            "training_reward/score": 2.0,
            "training_reward_std/score": pytest.approx(math.sqrt(14 / 4), rel=1e-12),
            "training_reward_group_std/score": 1.0,
        }


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({}, r"files is null, but .*=\$\{data\.val_files\}'"),
        *(({"files": each}, "valid is a data file, or a list of them") for each in ([], [""], {"a": "b"})),
    ],
)
def test_a_section_that_names_no_file_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Options.from_config({"grpo_ext": {"gold_responses": section}})
