"""Test the KL between two policies on sampled responses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_verl_ext.iterate import rounds
from grpo_verl_ext.iterate.kl_to_first import measure_kl
from grpo_verl_ext.iterate.settings import IterateSettings, MeasureSettings, PolicySettings
from grpo_verl_ext.tasks.causal_lm import Sampled, sample
from grpo_verl_ext.utils.end_tokens import end_tokens
from grpo_verl_ext.verl_plugin.compose import composed

Job = dict[str, Any]
CHATS = [[{"role": "user", "content": text}] for text in ("1+2=?", "4+5+6=?", "7=?")]


@pytest.fixture
def job(tmp_path: Path, policy: Path) -> Job:
    return {
        "policy": str(policy),
        "first": str(policy),
        "chats": CHATS,
        "batch_size": 2,
        "max_response_tokens": 6,
        "template": {},
        "seed": 1,
        "result": str(tmp_path / "result.json"),
    }


def measured(job: Job) -> dict[str, float]:
    measure_kl(**job)
    result: dict[str, float] = json.loads(Path(job["result"]).read_text())
    return result


def test_a_policy_is_at_distance_zero_from_itself(job: Job) -> None:
    assert measured(job)["kl_to_first"] == pytest.approx(0, abs=1e-6)
    assert 3 <= measured(job)["tokens"] <= 18


@pytest.mark.parametrize("size", [1, 3])
def test_it_is_what_each_response_gives_alone_and_unpadded(job: Job, tmp_path: Path, size: int) -> None:
    moved = AutoModelForCausalLM.from_pretrained(job["policy"], dtype=torch.float32)
    with torch.no_grad():
        moved.model.embed_tokens.weight.mul_(1.5)
    moved.save_pretrained(tmp_path / "moved")
    tokenizer = AutoTokenizer.from_pretrained(job["policy"], padding_side="left")
    tokenizer.save_pretrained(tmp_path / "moved")
    policy, first = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for path in (tmp_path / "moved", job["first"])
    )
    nats, tokens = 0.0, 0
    for start in range(0, len(CHATS), size):
        chats = CHATS[start : start + size]
        sampled = sample(policy, tokenizer, chats, temperature=1.0, max_response_tokens=6, seed=1 + start)
        mask = sampled.response_mask(end_tokens(tokenizer, policy.generation_config))
        for row in range(len(chats)):
            prompt = sampled.tokens[row, : sampled.prompt_width][sampled.prompt_mask[row].bool()]
            response = sampled.tokens[row, sampled.prompt_width :][mask[row].bool()]
            ids = torch.cat([prompt, response])[None]
            p, q = (
                model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double() for model in (policy, first)
            )
            nats += float((p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum())
            tokens += len(response)
    assert nats > 0.01
    # Single precision through the model.
    wanted = {"kl_to_first": pytest.approx(nats / len(CHATS), abs=1e-4), "tokens": tokens}
    assert measured(job | {"policy": str(tmp_path / "moved"), "batch_size": size}) == wanted


def test_the_mask_ends_with_the_first_end() -> None:
    sampled = Sampled(torch.tensor([[0, 5, 9, 5, 9], [0, 5, 5, 5, 5], [0, 9, 9, 9, 9]]), 1, torch.ones(3, 1))
    assert sampled.response_mask([9]).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert sampled.response_mask({5, 7}).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]


def test_the_models_own_penalty_is_not_used(policy: Path) -> None:
    """verl's rollout has none, whatever the model's generation settings say."""
    tokenizer = AutoTokenizer.from_pretrained(policy, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    how = {"temperature": 1.0, "max_response_tokens": 12, "seed": 1}
    wanted = sample(model, tokenizer, CHATS, **how)
    model.generation_config.repetition_penalty = 1.5
    assert sample(model, tokenizer, CHATS, **how).tokens.equal(wanted.tokens)


def test_the_template_gets_the_trainings_arguments(policy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy, padding_side="left")
    tokenizer.chat_template = "{{ mood }}{{ messages[0]['content'] }}"
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    sampled = sample(
        model, tokenizer, CHATS[:1], temperature=1.0, max_response_tokens=1, seed=1, template={"mood": "!"}
    )
    assert tokenizer.decode(sampled.tokens[0, : sampled.prompt_width]) == "!1+2=?"


def test_the_prompts_are_read_as_verl_reads_its_data(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, jobs = tmp_path / "val.jsonl", []
    rows = [json.dumps({"prompt": chat, "data_source": "sums"}) for chat in CHATS]
    file.write_text("\n".join(rows) + "\n")
    words = (f"data.val_files={file}", f"actor_rollout_ref.model.path={policy}")
    config = composed(["actor_rollout_ref.rollout.name=vllm", *words])
    settings = IterateSettings(
        folder=str(tmp_path),
        rounds=1,
        policy=PolicySettings(overrides=[], steps=1),
        measure=MeasureSettings(prompts=2),
    )
    this = rounds.Round(settings, 1)
    this.folder.mkdir()
    (this.folder / "divergence.json").write_text("{}")
    monkeypatch.setattr(rounds, "_run_job", lambda module, job, name: jobs.append(job))
    rounds._measure_policy(this, config, lambda response, truth: 0)
    assert jobs[0]["chats"] == CHATS[:2]
