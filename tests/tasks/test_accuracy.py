"""Test accuracy with a model whose response is always the same."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_verl_ext.tasks.chain_sum.model import accuracy, sample_responses
from grpo_verl_ext.tasks.chain_sum.problems import write_problems


def test_it_is_the_share_of_right_answers(tiny_prepared, tmp_path, monkeypatch):
    problems = [(1, 2, 3), (2, 2, 2), (3, 3, 1), (0, 6, 0)]
    write_problems(tmp_path / "four.parquet", problems, "test")
    said = ["<answer>6</answer>", "<answer>6.0</answer>", "<answer>6</answer>", "6"]
    monkeypatch.setattr("grpo_verl_ext.tasks.chain_sum.model.sample_responses", lambda *args, **how: said)
    # right, equal, wrong, untagged
    assert accuracy(tiny_prepared.folder / "model", tmp_path / "four.parquet", n=4) == 0.5


def test_sampling_repeats_with_its_seed_and_stops_at_the_end_of_the_turn(tiny_prepared):
    model = tiny_prepared.folder / "model"
    chats = [[{"role": "user", "content": text}] for text in ("1+2+3=?", "1+2+3+4=?")]
    how = {"temperature": 1.0, "max_response_tokens": 12}
    state = torch.random.get_rng_state()
    first, again = (sample_responses(model, chats, seed=1, **how) for _ in range(2))
    assert first == again != sample_responses(model, chats, seed=2, **how)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_padding_changes_no_greedy_response(tiny_prepared):
    """Batched with a longer prompt, a response is the one that plain, unbatched decoding gives."""
    folder = tiny_prepared.folder / "model"
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    chats = [[{"role": "user", "content": text}] for text in ("1+2+3=?", "1+2+3+4+5=?")]
    batched = sample_responses(folder, chats, temperature=0.0, max_response_tokens=6, seed=0)
    for chat, response in zip(chats, batched, strict=True):
        ids = tokenizer.encode(
            tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        )
        start = len(ids)
        with torch.no_grad():
            while len(ids) < start + 6 and ids[-1] != tokenizer.eos_token_id:
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        assert tokenizer.decode(ids[start:], skip_special_tokens=True) == response


def test_more_prompts_than_there_are_is_refused(tiny_prepared):
    with pytest.raises(ValueError, match=r"n=512 prompts wanted, but .*test.parquet has 9"):
        accuracy(tiny_prepared.folder / "model", tiny_prepared.folder / "test.parquet")
