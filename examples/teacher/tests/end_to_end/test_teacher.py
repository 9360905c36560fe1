"""Test distillation by GVPO through verl's whole pipeline: two tokenizers, a teacher that dies, a kill."""

import json
import math
import re
import runpy
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl_runs import killed_after, started, train, wait_for

from grpo_verl_ext.runs.verl_run import read_metrics
from grpo_verl_ext.tasks.chain_sum.model import build_model, build_tokenizer
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

EXAMPLE = Path(__file__).parents[2] / "chain_sum_teacher.py"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights whose tokenizer has one token for two digits, read again, too."""
    folder = tmp_path_factory.mktemp("teacher")
    example = runpy.run_path(str(EXAMPLE))
    tokenizer = example["with_joined_digits"]()
    example["build_llama"](TaskSettings(), tokenizer, seed=3).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert len(AutoTokenizer.from_pretrained(folder)("12345")["input_ids"]) == 3
    return folder


def overrides(teacher: Path, folder: Path, *, reads: str) -> tuple[str, ...]:
    return (
        f"distillation.teacher_models.teacher_model.model_path={teacher}",
        f"++algorithm.grpo_ext.teacher.reads={reads}",
        f"trainer.rollout_data_dir={folder / 'rollouts'}",
        *("trainer.total_training_steps=3", "trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=1"),
        *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.resume_mode=auto"),
    )


def mean_log_prob(teacher: Path, rows: list[dict[str, Any]]) -> float:
    """Of the dumped responses under transformers, from their texts, in the teacher's template and tokens."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(teacher), AutoTokenizer.from_pretrained(teacher)
    policy = build_tokenizer()
    found = []
    for row in rows:
        question = row["input"].split("user\n")[1].split("\nassistant")[0]
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        ids = tokenizer(row["output"], add_special_tokens=False)["input_ids"]
        if (
            len(policy(row["output"], add_special_tokens=False)["input_ids"])
            < TaskSettings.max_response_tokens
        ):
            ids = [*ids, tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
        found.append(logits[len(prompt) - 1 : -1].gather(-1, torch.tensor(ids).unsqueeze(-1)).sum().item())
    return math.fsum(found) / len(found)


def dumped(folder: Path, step: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts" / f"{step}.jsonl").read_text().splitlines()]


def kill_the_teachers_engine(driver: int) -> None:
    """The eldest of vLLM's engines: the trainer starts its teachers before its own rollout."""
    engines = [
        each
        for each in psutil.Process(driver).children(recursive=True)
        if "EngineCore" in " ".join(each.cmdline())
    ]
    assert len(engines) == 2
    min(engines, key=psutil.Process.create_time).kill()


def test_another_tokenizer_and_a_teacher_that_dies(teacher: Path, tmp_path: Path) -> None:
    log = tmp_path / "first.log"
    driver = started(
        *overrides(teacher, tmp_path, reads="text"), algo="gvpo_distill", folder=tmp_path, log=log
    )
    try:
        wait_for(lambda: 1 in read_metrics(tmp_path.glob("metrics.jsonl")), process=driver, seconds=600)
        kill_the_teachers_engine(driver.pid)
        assert driver.wait(300) != 0
    finally:
        driver.kill()
    said = log.read_text(errors="replace")
    assert re.search(
        rf"TeacherError: the teacher {teacher} gave no log-probs in 3 attempts, of which the last", said
    )
    time.sleep(1)
    resumed = train(
        *overrides(teacher, tmp_path, reads="text"), algo="gvpo_distill", folder=tmp_path
    ).require_success()
    assert max(resumed.metrics) == 3
    assert "Resuming from" in resumed.log.read_text(errors="replace")
    assert all(norm > 0 for norm in resumed.series("actor/grad_norm"))
    step = max(resumed.metrics)
    rows = dumped(tmp_path, step)
    with_text = [row for row in rows if "\ufffd" not in row["output"]]
    found = resumed.metrics[step]
    assert found["distill/without_text"] == pytest.approx(1 - len(with_text) / len(rows))
    # Both in fp32, by other kernels: some 1e-6 a token.
    wanted = mean_log_prob(teacher, with_text)
    assert found["distill/sampled/teacher_log_prob"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.long
def test_the_same_tokenizer_killed_and_resumed(tmp_path: Path) -> None:
    teacher, tokenizer = tmp_path / "teacher", build_tokenizer()
    build_model(TaskSettings(), tokenizer, seed=3).save_pretrained(teacher)
    tokenizer.save_pretrained(teacher)
    words = overrides(teacher, tmp_path, reads="tokens")
    first, _ = killed_after(2, *words, algo="gvpo_distill", folder=tmp_path)
    resumed = train(*words, algo="gvpo_distill", folder=tmp_path).require_success()
    assert sorted(resumed.metrics) == [3], "training began anew instead of resuming"
    assert "Resuming from" in resumed.log.read_text(errors="replace")
    for run in (first, resumed):
        assert all(norm > 0 for norm in run.series("actor/grad_norm"))
        assert run.series("distill/without_text") == [0.0] * len(run.metrics)
    assert all(kl > 10 for run in (first, resumed) for kl in run.series("distill/kl_estimate"))
    # Of 128 responses, the few that the policy spelled in other tokens read otherwise as a text.
    wanted = mean_log_prob(teacher, dumped(tmp_path, 3))
    assert resumed.metrics[3]["distill/sampled/teacher_log_prob"] == pytest.approx(wanted, rel=2e-3)
