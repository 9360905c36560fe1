"""Test the KL between two policies on sampled responses."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_verl_ext.iterate import rounds
from grpo_verl_ext.iterate.kl_to_initial import DivergenceJob, divergence, measure_kl
from grpo_verl_ext.tasks.causal_lm import Sampled, sample
from grpo_verl_ext.verl_plugin.compose import composed

CHATS = [[{"role": "user", "content": text}] for text in ("1+2=?", "4+5+6=?", "7=?")]


@pytest.fixture
def job(tmp_path: Path, policy: Path) -> DivergenceJob:
    return DivergenceJob(
        policy=str(policy),
        first=str(policy),
        chats=CHATS,
        batch_size=2,
        temperature=1.0,
        max_response_tokens=6,
        template={},
        seed=1,
        result=str(tmp_path / "result.json"),
    )


def test_a_policy_is_at_distance_zero_from_itself(job: DivergenceJob) -> None:
    measure_kl(job)
    measured = json.loads(Path(job.result).read_text())
    assert measured["kl_to_first"] == pytest.approx(0, abs=1e-6)
    assert 3 <= measured["tokens"] <= 18


def test_it_is_what_each_response_gives_alone_and_unpadded(job: DivergenceJob, tmp_path: Path) -> None:
    moved = AutoModelForCausalLM.from_pretrained(job.policy, dtype=torch.float32)
    with torch.no_grad():
        moved.model.embed_tokens.weight.mul_(1.5)
    moved.save_pretrained(tmp_path / "moved")
    AutoTokenizer.from_pretrained(job.policy).save_pretrained(tmp_path / "moved")
    policy, first = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for path in (tmp_path / "moved", job.first)
    )
    tokenizer = AutoTokenizer.from_pretrained(job.policy, padding_side="left")
    moved_job = replace(job, policy=str(tmp_path / "moved"))
    kl, mask = divergence(policy, first, tokenizer, CHATS, moved_job, seed=1)
    assert kl.sum() > 0.01

    sampled = sample(policy, tokenizer, CHATS, temperature=1.0, max_response_tokens=6, seed=1)
    for row in range(len(CHATS)):
        prompt = sampled.tokens[row, : sampled.prompt_width][sampled.prompt_mask[row].bool()]
        response = sampled.tokens[row, sampled.prompt_width :][mask[row].bool()]
        tokens = torch.cat([prompt, response])[None]
        p, q = (model(input_ids=tokens).logits[0, len(prompt) - 1 : -1].double() for model in (policy, first))
        wanted = (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)
        # Single precision through the model.
        assert kl[row][mask[row].bool()].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)
        assert kl[row][~mask[row].bool()].tolist() == [0] * int((~mask[row].bool()).sum())


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


def test_the_prompts_are_read_as_verl_reads_its_data(policy: Path, tmp_path: Path) -> None:
    file = tmp_path / "val.jsonl"
    rows = [json.dumps({"prompt": chat, "data_source": "sums"}) for chat in CHATS]
    file.write_text("\n".join(rows) + "\n")
    words = (f"data.val_files={file}", f"actor_rollout_ref.model.path={policy}")
    assert rounds._chats(composed(["actor_rollout_ref.rollout.name=vllm", *words]), 2) == CHATS[:2]


def test_a_job_is_json(job: DivergenceJob) -> None:
    assert DivergenceJob(**json.loads(json.dumps(asdict(job)))) == job
