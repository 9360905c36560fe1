"""Test the example that computes KL(teacher ‖ student) of a comparison's students."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from module_files import load_module
from transformers import AutoTokenizer

from grpo_verl_ext.tasks.causal_lm import IGNORED_LABEL
from grpo_verl_ext.tasks.chain_sum.model import build_model, build_tokenizer
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings
from grpo_verl_ext.tasks.folders import write_rows

EXAMPLE = Path(__file__).parents[1] / "chain_sum_teacher_kl.py"
QUESTIONS = {
    "1+2=?": "<answer>3</answer>",
    "3+4+5=?": "<reasoning>3+4=7;7+5=12;</reasoning><answer>12</answer>",
}


@pytest.fixture
def example() -> ModuleType:
    return load_module(EXAMPLE)


def test_the_exact_kl_of_two_coins(example: ModuleType) -> None:
    """Two tokens a position: at the one that counts, KL((¾, ¼) ‖ (½, ½)) = log 2 − H(¾)."""
    teacher, student = (torch.tensor([[p, 0.9], [1 - p, 0.1]]).T.log()[None] for p in (0.75, 0.5))
    student[0, 1] = torch.tensor([0.2, 0.8]).log()
    labels = torch.tensor([[0, IGNORED_LABEL]])
    kl = 0.75 * torch.tensor(1.5).log() + 0.25 * torch.tensor(0.5).log()
    assert example.exact_kl(teacher, student, labels) == pytest.approx(float(kl), rel=1e-6)
    assert example.log_prob(teacher, labels) == pytest.approx(float(torch.tensor(0.75).log()), rel=1e-6)


def test_a_run_of_one_student(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny: TaskSettings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Against transformers' own log-probs of each response alone, and of every next token."""
    tokenizer = build_tokenizer()
    teacher, student = (build_model(tiny, tokenizer, seed=seed).eval() for seed in (1, 2))
    teacher.save_pretrained(tmp_path / "teacher")
    tokenizer.save_pretrained(tmp_path / "teacher")
    (tmp_path / "teacher" / "seed-5").mkdir()
    rows = [
        {"prompt": [{"role": "user", "content": asked}], "extra_info": {"response": said}}
        for asked, said in QUESTIONS.items()
    ]
    write_rows(tmp_path / "teacher" / "seed-5" / "test.parquet", rows)
    actor = tmp_path / "grid" / "gvpo" / "seed-5" / "checkpoints" / "global_step_16" / "actor"
    student.config.save_pretrained(actor / "huggingface")
    torch.save(student.state_dict(), actor / "model_world_size_1_rank_0.pt")
    monkeypatch.setattr(
        sys, "argv", [str(EXAMPLE), str(tmp_path / "teacher"), str(tmp_path / "grid"), "gvpo"]
    )
    example.main()
    name, numbers = capsys.readouterr().out.splitlines()[-1].split(": ")
    found = [float(word) for word in numbers.split(";")[0].split()]

    reader = AutoTokenizer.from_pretrained(tmp_path / "teacher")
    expected = torch.zeros(4)
    for asked, said in QUESTIONS.items():
        chat = [{"role": "user", "content": asked}]
        asked_ids = reader.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        ids = [*asked_ids, *reader.encode(said), reader.eos_token_id]
        with torch.no_grad():
            own, other = (
                model(torch.tensor([ids])).logits[0].log_softmax(-1) for model in (teacher, student)
            )
        for position in range(len(asked_ids) - 1, len(ids) - 1):
            target = ids[position + 1]
            one, two = own[position], other[position]
            kl = torch.nn.functional.kl_div(two, one, log_target=True, reduction="sum")
            expected += torch.stack([one[target], two[target], one[target] - two[target], kl]) / 2
    assert name == "gvpo"
    assert found == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-3)
