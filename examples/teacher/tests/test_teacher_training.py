"""Test GVPO around a teacher through verl's agent-loop worker, the package's trainer and verl's actor worker.

In the places of servers and queue are those of `stored_rollout`; a small model is the teacher.
"""

import asyncio
import contextlib
import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stored_rollout
import teachers
import torch
from gvpo_teacher import rollout as teacher_rollout
from gvpo_teacher.options import LOG_PROB, TeacherError
from gvpo_teacher.rollout import TeacherAgentLoopWorker
from stored_rollout import (
    Rollout,
    Server,
    rows_for_worker,
    small_model,
    small_tokenizer,
    token_log_probs,
    trained,
)
from torch import Tensor
from verl.experimental.teacher_loop.teacher_manager import AsyncTeacherLLMServerManager
from verl.trainer.distillation.losses import distillation_ppo_loss
from verl.workers.config import DistillationConfig, DistillationLossConfig

from grpo_verl_ext import preflight
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.wire import Field

F64 = torch.float64
TABLE = [list(tokens) for tokens in itertools.product(range(5), repeat=2)]
"""All responses of two tokens."""
PROMPTS = ("ab", "dc")
ONE = PROMPTS[:1]
N = "actor_rollout_ref__rollout__n"
SERVER = {
    "distillation__teacher_models__teacher_model__model_path": "teacher",
    "distillation__teacher_models__teacher_model__inference__tensor_model_parallel_size": 1,
    "distillation__nnodes": 1,
    "distillation__n_gpus_per_node": 1,
}
RECORDED = {
    "algo": "gvpo_distill", "share": 1.0, "source": "data", "distillation__enabled": False,
    "algorithm__grpo_ext__teacher": {"source": "recorded"}, N: 2,
}  # fmt: skip
TEACHER_MODEL = SimpleNamespace(model_path="teacher", inference=SimpleNamespace(max_model_len=None))


def teacher() -> torch.nn.Module:
    """Far from `small_model`, and likes every response enough to be sampled."""
    model = small_model(seed=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.5)
    return model


class ScoredWorker(TeacherAgentLoopWorker, stored_rollout.AgentLoopWorker):
    """The package's worker in this process, with a model in the place of the teacher's servers."""

    def __init__(self, *args: Any) -> None:
        self.teacher_key = "data_source"
        self.teacher_server_manager = teachers.ScoringManager(teacher(), TEACHER_MODEL)
        super().__init__(*args)


def distilled(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    responses: list[list[int]],
    prompts: tuple[str, ...] = PROMPTS,
    **settings: Any,
) -> Rollout:
    n = len(responses) // len(prompts)
    own = Rollout(
        monkeypatch,
        folder,
        [{"prompt": prompt} for prompt in prompts],
        **{
            "algo": "gvpo_distill",
            "worker": ScoredWorker,
            "server": Server(responses),
            **SERVER,
            N: n,
        }
        | settings,
    )
    own.trainer._init_dataloader()
    return own


def log_distribution(model: torch.nn.Module, prompt: str) -> Tensor:
    ids = ["abcd".index(letter) for letter in prompt]
    with torch.no_grad():
        return torch.stack([token_log_probs(model, ids, response).sum() for response in TABLE])


def total_variation(one: Tensor, other: Tensor) -> float:
    return 0.5 * (one.exp() - other.exp()).abs().sum().item()


def written_by(weights: dict[str, float], prompt: str, models: dict[str, torch.nn.Module]) -> list[list[int]]:
    """Responses in the proportions of a mixture of policies, and each at least once: full support."""
    shares = sum(weight * log_distribution(models[who], prompt).exp() for who, weight in weights.items())
    return [
        response
        for response, share in zip(TABLE, shares, strict=True)
        for _ in range(max(1, round(30 * float(share))))
    ]


WRITERS = {
    "the student's": {"student": 1.0},
    "the teacher's": {"teacher": 1.0},
    "both": {"student": 0.5, "teacher": 0.5},
}


def verls_distillation(config: Any, **arguments: Any) -> Any:
    """verl's own distillation by the policy gradient of k1, which is clipped."""
    distillation = DistillationConfig(
        distillation_loss=DistillationLossConfig(
            loss_mode="k1", use_policy_gradient=True, use_task_rewards=False, loss_max_clamp=None
        )
    )
    return distillation_ppo_loss(config, distillation, **arguments)


@pytest.mark.ci
def test_the_student_becomes_the_teacher_whoever_writes_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 updates on one rollout, by verl's worker; verl's policy gradient stops where its clip does."""
    start, goal, variants, batches = small_model(), teacher(), {}, {}
    common = {
        "learning_rate": 1.5e-2, "dtype": "float64", "gradient_checkpointing": False,
        "lora_rank": 0, "terms": "all",
    }  # fmt: skip
    for name, shares in WRITERS.items():
        written = written_by(shares, ONE[0], {"student": start, "teacher": goal})
        own = distilled(
            monkeypatch,
            tmp_path / name,
            written,
            model=start,
            actor_rollout_ref__actor__ppo_epochs=80,
            prompts=ONE,
        )
        batch, metrics = own.step()
        rows = rows_for_worker(own.queue, batch)
        common |= {"n": len(written), "micro_batch": len(rows)}
        batches[name] = {"ranks": [rows], "extra_info": batch.extra_info}
        variants[name] = common | {"loss": "gvpo", "worker": "ours", "beta": 1}
        assert metrics["distill/sampled/residual"] > 0.1
    scored = [row | of_verl(goal, row) for row in rows]
    batches["verl"] = {"ranks": [scored], "extra_info": batch.extra_info}
    variants["verl"] = common | {"loss": "vanilla", "worker": "verl", "loss_function": verls_distillation}
    models = trained(tmp_path, start, variants, batches, n=1, beta=1)
    for prompt in ONE:
        wanted = log_distribution(goal, prompt)
        for name in WRITERS:
            assert total_variation(log_distribution(models[name], prompt), wanted) <= 0.02, name
        assert total_variation(log_distribution(models["verl"], prompt), wanted) > 0.05
        assert total_variation(log_distribution(start, prompt), wanted) > 0.15, "it had somewhere to go"


def of_verl(goal: torch.nn.Module, row: dict[str, Any]) -> dict[str, Tensor]:
    """The fields of verl's own distillation: at position t the teacher's log-prob of token t + 1."""
    sequence = torch.cat([row["prompts"], row["responses"]]).tolist()
    found = torch.cat([teachers.log_probs(goal, sequence), torch.zeros(1).double()])
    return {"teacher_logprobs": found.unsqueeze(-1), "teacher_ids": torch.tensor(sequence).unsqueeze(-1)}


RESPONSES = [[0, 4], [1, 4], [2, 4], [3, 3], [0, 1], [2, 2], [1, 1], [3, 4]]
"""Four of each prompt."""


def scores(rollout: Rollout) -> dict[str, list[float]]:
    """Of the rows of each prompt, as the trainer stores them, sessions in order."""
    found: dict[str, dict[str, float]] = {}
    for key, row in rollout.queue.rows.items():
        if "pad" not in key:
            found.setdefault(row["raw_prompt"][0]["content"], {})[key] = float(row[LOG_PROB])
    return {prompt: [of_key[key] for key in sorted(of_key)] for prompt, of_key in found.items()}


def test_each_response_gets_the_teachers_log_prob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = distilled(monkeypatch, tmp_path, RESPONSES)
    _, metrics = own.step()
    written = [row for key, row in own.queue.rows.items() if "pad" not in key]
    for row in written:
        wanted = token_log_probs(teacher(), row["prompts"].tolist(), row["responses"].tolist()).sum().item()
        assert float(row[LOG_PROB]) == pytest.approx(wanted, rel=1e-12)
    student = [
        token_log_probs(small_model(), r["prompts"].tolist(), r["responses"].tolist()).sum() for r in written
    ]
    apart = [float(s) - float(r[LOG_PROB]) for s, r in zip(student, written, strict=True)]
    assert metrics["distill/kl_estimate"] == pytest.approx(sum(apart) / 8)
    assert metrics["distill/without_text"] == 0
    assert "distill/stored/log_prob" not in metrics


class RoutedManager(teachers.ScoringManager):
    """Two teachers, of which verl's own rule chooses one for each prompt."""

    _resolve_teacher_key = AsyncTeacherLLMServerManager._resolve_teacher_key

    def __init__(self, scorers: dict[str, torch.nn.Module]) -> None:
        self.scorers, self.asked, self.failures, self.teacher_key = scorers, 0, [], "data_source"
        self.teacher_model_configs = dict.fromkeys(scorers, TEACHER_MODEL)

    async def compute_teacher_logprobs_single(self, sequence_ids: list[int], **request: Any) -> Any:
        self.scorer = self.scorers[request["routing_key"]]
        return await super().compute_teacher_logprobs_single(sequence_ids, **request)


TEACHER_OF = {
    "_target_": "verl.workers.config.DistillationTeacherModelConfig",
    "model_path": "a folder", "num_replicas": 1,
    "inference": "${distillation.teacher_models.teacher_model.inference}",
}  # fmt: skip


class RoutedWorker(ScoredWorker):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.teacher_server_manager = RoutedManager({"sums": teacher(), "words": small_model(seed=7)})


def test_each_of_several_teachers_scores_the_prompts_of_its_data_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Rollout(
        monkeypatch, tmp_path,
        [{"prompt": p, "data_source": of} for p, of in zip(PROMPTS, ("sums", "words"), strict=True)],
        algo="gvpo_distill", worker=RoutedWorker, server=Server(RESPONSES),
        **{f"distillation__teacher_models__{name}": TEACHER_OF | {"key": name} for name in ("sums", "words")},
        distillation__teacher_models__teacher_model__inference__tensor_model_parallel_size=1,
        distillation__nnodes=1, distillation__n_gpus_per_node=2, **{N: 4},
    )  # fmt: skip
    own.trainer._init_dataloader()
    own.step()
    scorers = dict(zip(PROMPTS, (teacher(), small_model(seed=7)), strict=True))
    rows = [row for key, row in own.queue.rows.items() if "pad" not in key]
    assert len(rows) == 8
    for row in rows:
        scorer = scorers[row["raw_prompt"][0]["content"]]
        wanted = token_log_probs(scorer, row["prompts"].tolist(), row["responses"].tolist()).sum().item()
        assert float(row[LOG_PROB]) == pytest.approx(wanted, rel=1e-12)


def test_stored_responses_are_scored_and_logged_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"prompt": p, "extra_info": {"responses": [{"token_ids": [4, 4]}] * 2, "index": i}}
        for i, p in enumerate(PROMPTS)
    ]
    own = Rollout(
        monkeypatch, tmp_path, rows,
        algo="gvpo_distill", worker=ScoredWorker, server=Server(RESPONSES[:4]), share=0.5,
        **SERVER, **{N: 4},
    )  # fmt: skip
    own.trainer._init_dataloader()
    _, metrics = own.step()
    goal = [token_log_probs(teacher(), ["abcd".index(c) for c in p], [4, 4]).sum().item() for p in PROMPTS]
    assert metrics["distill/stored/teacher_log_prob"] == pytest.approx(sum(goal) / 2)
    assert {f"distill/{origin}/agreement" for origin in ("sampled", "stored")} <= metrics.keys()


def test_recorded_log_probs_are_the_teachers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [
        {"token_ids": [0, 4], "log_probs": [-1.0, -0.25]},
        {"token_ids": [1, 4], "log_probs": [-2.0, -0.5]},
    ]
    rows = [{"prompt": p, "extra_info": {"responses": stored, "index": i}} for i, p in enumerate(PROMPTS)]
    own = Rollout(monkeypatch, tmp_path, rows, **RECORDED)
    own.trainer._init_dataloader()
    own.step()
    assert scores(own) == {prompt: [-1.25, -2.5] for prompt in PROMPTS}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            [{"token_ids": [1, 4]}],
            r"response 1 in extra_info.responses of row 1 has no log_probs, and .*Type: .*source=server",
        ),
        ([], r"row 1 has 1 responses, and .*source is recorded.*valid is 2 .*Type: .*source=server"),
    ],
)
def test_a_sample_without_recorded_log_probs_is_named_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: list[Any], message: str
) -> None:
    whole = {"token_ids": [0, 4], "log_probs": [-1.0, -0.25]}
    stored = [[whole, whole], [whole, *second]]
    rows = [{"prompt": p, "extra_info": {"responses": r}} for p, r in zip(PROMPTS, stored, strict=True)]
    own = Rollout(monkeypatch, tmp_path, rows, **RECORDED)
    with pytest.raises(SettingError, match=message):
        own.trainer._init_dataloader()


def test_data_of_several_turns_are_refused_for_a_teacher_that_reads_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl takes a row's agent loop before the configuration's."""
    own = distilled(monkeypatch, tmp_path, RESPONSES)
    monkeypatch.setattr(type(own.trainer), "_reads_text", True)
    rows = [{"agent_name": "single_turn_agent"}, {"agent_name": "tool_agent"}]
    monkeypatch.setattr("verl.trainer.ppo.v1.trainer_base.PPOTrainer._init_dataloader", lambda own: None)
    own.trainer.train_dataset = rows
    with pytest.raises(SettingError, match=r"agent_name=tool_agent, and .* one turn.*Type: .*reads=tokens"):
        own.trainer._init_dataloader()


class TextWorker(ScoredWorker):
    """The teacher reads text in a tokenizer of its own."""

    def __init__(self, *args: Any) -> None:
        self.model_config = SimpleNamespace(generation_config=None)
        super().__init__(*args)
        self.teacher_server_manager.scorer = teachers.model(330)


@contextlib.contextmanager
def in_use_elsewhere(tokenizer: Any) -> Iterator[None]:
    """Prompts are written by a tokenizer in threads of verl, while responses are read."""
    ended, texts = threading.Event(), ["ab" * 20_000] * 8

    def write() -> None:
        while not ended.is_set():
            tokenizer(texts)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_response_without_text_leaves_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end token inside a response, which the rule of `teacher.text` leaves without a log-prob."""
    monkeypatch.setattr(teacher_rollout, "hf_tokenizer", lambda name_or_path: teachers.tokenizer(330, "</s>"))
    monkeypatch.setattr(teacher_rollout, "copy_to_local", lambda src: src)
    responses = [[0, 4], [4, 1], [2, 4], [3, 3], *RESPONSES[4:]]
    own = distilled(
        monkeypatch, tmp_path, responses, worker=TextWorker, algorithm__grpo_ext__teacher={"reads": "text"}
    )
    with in_use_elsewhere(own.worker.tokenizer):
        _, metrics = own.step()
    assert metrics["distill/without_text"] == pytest.approx(1 / 8)
    lost = [
        row for key, row in own.queue.rows.items() if "pad" not in key and row["responses"].tolist() == [4, 1]
    ]
    assert [row["response_mask"].tolist() for row in lost] == [[0, 0]]
    assert [int(row[Field.GROUP_SIZE]) for row in lost] == [3]


def test_a_teacher_that_is_slow_or_fails_is_asked_again_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    reported = []
    monkeypatch.setattr(teacher_rollout, "report_failure", reported.append)
    own = distilled(
        monkeypatch, tmp_path, RESPONSES, algorithm__grpo_ext__teacher={"timeout": 0.05, "retries": 1}
    )
    manager = own.worker.teacher_server_manager
    manager.failures = [5.0]
    own.step()
    assert (manager.asked, reported) == (9, [])
    manager.failures = [5.0, ray.exceptions.RayActorError()] * 8
    own.server.left = list(RESPONSES)
    own.generate()
    assert len(reported) == 8
    assert "the teacher teacher gave no log-probs in 2 attempts" in str(reported[0])
    assert "resumes from its last checkpoint" in str(reported[0])


class OneByOne(teachers.ScoringManager):
    """A server that takes 0.05 s for each response, one after the other."""

    busy: asyncio.Lock

    async def compute_teacher_logprobs_single(self, sequence_ids: list[int], **request: Any) -> Any:
        async with self.busy:
            await asyncio.sleep(0.05)
            return await super().compute_teacher_logprobs_single(sequence_ids, **request)


def test_a_response_may_wait_while_the_teacher_answers_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of eight has its answer after 0.4 s."""
    own = distilled(
        monkeypatch, tmp_path, RESPONSES, algorithm__grpo_ext__teacher={"timeout": 0.25, "retries": 0}
    )
    own.worker.teacher_server_manager = OneByOne(teacher(), TEACHER_MODEL)
    own.worker.teacher_server_manager.busy = asyncio.Lock()
    _, metrics = own.step()
    assert own.worker.teacher_server_manager.asked == 8
    assert metrics["distill/without_text"] == 0


def test_a_teacher_that_knows_no_response_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = distilled(monkeypatch, tmp_path, RESPONSES)

    async def unknown(*_: Any) -> None:
        return None

    monkeypatch.setattr(own.worker, "_scored", unknown)
    with pytest.raises(TeacherError, match=r"no response of this step has a log-prob .*type: .*reads=tokens"):
        own.step()


def fails(manager: Any) -> None:
    manager.failures = [AssertionError()]


def knows_no_number(manager: Any) -> None:
    with torch.no_grad():
        next(manager.scorer.parameters()).fill_(torch.nan)


def is_short(manager: Any) -> None:
    short = SimpleNamespace(model_path="teacher", inference=SimpleNamespace(max_model_len=4))
    manager.teacher_model_configs = {"default": short}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (fails, "a response could not be given to the teacher teacher: AssertionError"),
        (knows_no_number, "gave a response of 2 tokens the log-prob nan"),
        (is_short, r"max_model_len is 4 for the teacher teacher, but .* needs 5"),
    ],
)
def test_what_else_fails_names_the_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any, message: str
) -> None:
    reported = []
    monkeypatch.setattr(teacher_rollout, "report_failure", reported.append)
    own = distilled(monkeypatch, tmp_path, RESPONSES)
    how(own.worker.teacher_server_manager)
    own.generate()
    assert re.search(message, str(reported[0]))
    assert isinstance(reported[0], TeacherError)
    assert how is not is_short or own.worker.teacher_server_manager.asked == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"distillation__teacher_models__teacher_model__model_path": None},
            r"model_path is null; valid is a folder.*Type: distillation.*=<folder>",
        ),
        (
            {"actor_rollout_ref__actor__policy_loss__gvpo_alpha": -1},
            r"gvpo_alpha is -1; valid is a finite number ≥ 0",
        ),
        (
            {"algo": "gvpo", "algorithm__grpo_ext__teacher": {"reads": "text"}},
            r"grpo_ext.teacher is .*gvpo_anchor is old, and nothing reads it",
        ),
    ],
)
def test_wrong_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        distilled(monkeypatch, tmp_path, RESPONSES, **changes)


def test_the_tokenizers_are_compared_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gvpo_teacher import trainer as teacher_trainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    own = distilled(monkeypatch, tmp_path, RESPONSES)
    monkeypatch.setattr(PPOTrainer, "_init_tokenizer", lambda self: None)
    monkeypatch.setattr(teacher_trainer, "copy_to_local", lambda src: src)
    monkeypatch.setattr(teacher_trainer, "hf_tokenizer", lambda name_or_path: small_tokenizer())
    own.trainer._init_tokenizer()
    monkeypatch.setattr(teacher_trainer, "hf_tokenizer", lambda name_or_path: teachers.tokenizer(330, "</s>"))
    with pytest.raises(SettingError, match=r"Type: \+\+algorithm.grpo_ext.teacher.reads=text"):
        own.trainer._init_tokenizer()
    monkeypatch.setattr(type(own.trainer), "_reads_text", True)
    own.trainer._init_tokenizer()
    silent = teachers.tokenizer(330, "</s>", template=False)
    monkeypatch.setattr(teacher_trainer, "hf_tokenizer", lambda name_or_path: silent)
    with pytest.raises(SettingError, match=r"reads is text, but .* no chat_template"):
        own.trainer._init_tokenizer()


def test_a_teacher_that_reads_text_is_given_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = distilled(monkeypatch, tmp_path, RESPONSES)
    own.worker._readers = {"default": object()}
    output = SimpleNamespace(multi_modal_data={"images": [0]}, response_mask=[1])
    with pytest.raises(TeacherError, match=r"a prompt has images, which .* Type: .*teacher.reads=tokens"):
        asyncio.run(own.worker._scored(output, [0], [4], {}))


def test_settings_without_an_effect_are_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's loss is not added, so that it is no matter whether it would be the whole loss."""
    own = distilled(
        monkeypatch, tmp_path, RESPONSES, algorithm__use_kl_in_reward=True,
        distillation__distillation_loss__use_task_rewards=False,
    )  # fmt: skip
    said = {finding.problem.key: str(finding.problem) for finding in preflight.findings(own.config)}
    assert "nothing reads it" in said["distillation.distillation_loss.use_task_rewards"]
    assert "no reward counts" in said["algorithm.use_kl_in_reward"]
    assert not any("minimiser" in each for each in said.values())
