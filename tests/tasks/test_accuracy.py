"""Test the accuracy of a starting model, and the temperature that makes it a standard start."""

import math
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_verl_ext.tasks.causal_lm import sample
from grpo_verl_ext.tasks.chain_sum import model as starting_model
from grpo_verl_ext.tasks.chain_sum.model import accuracy, standardise
from grpo_verl_ext.tasks.chain_sum.problems import rows
from grpo_verl_ext.tasks.folders import write_rows


def test_it_is_the_share_of_right_answers(tiny_prepared, tmp_path, monkeypatch):
    write_rows(tmp_path / "four.parquet", rows([(1, 2, 3), (2, 2, 2), (3, 3, 1), (0, 6, 0)], "test"))
    said = ["<answer>6</answer>", "<answer>6.0</answer>", "<answer>6</answer>", "6"]
    as_tokens = lambda _, tokenizer, *__, **how: tokenizer(said, padding=True)["input_ids"]  # noqa: E731
    monkeypatch.setattr(starting_model, "sample", as_tokens)
    # right, equal, wrong, untagged
    assert accuracy(tiny_prepared.folder / "model", tmp_path / "four.parquet", n=4) == 0.5


@pytest.fixture(scope="module")
def started(tiny_prepared):
    """Model and tokenizer."""
    folder = tiny_prepared.folder / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), tokenizer


def test_sampling_repeats_with_its_seed(started):
    chats = [[{"role": "user", "content": text}] for text in ("1+2+3=?", "1+2+3+4=?")]
    how = {"temperature": 1.0, "max_response_tokens": 12}
    state = torch.random.get_rng_state()
    first, again, other = (sample(*started, chats, seed=seed, **how) for seed in (1, 1, 2))
    assert first.equal(again)
    assert not first.equal(other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_padding_changes_no_greedy_response(started):
    """Batched with a longer prompt, a response is the one that plain, unbatched decoding gives."""
    model, tokenizer = started
    chats = [[{"role": "user", "content": text}] for text in ("1+2+3=?", "1+2+3+4+5=?")]
    batched = sample(model, tokenizer, chats, temperature=0.0, max_response_tokens=6, seed=0)
    for chat, tokens in zip(chats, batched, strict=True):
        asked = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(asked)
        start = len(ids)
        with torch.no_grad():
            while len(ids) < start + 6 and ids[-1] != tokenizer.eos_token_id:
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        assert tokens.tolist()[: len(ids) - start] == ids[start:]


def test_more_prompts_than_there_are_is_refused(tiny_prepared):
    with pytest.raises(ValueError, match=r"n=512 prompts wanted, but .*test.parquet has 9"):
        accuracy(tiny_prepared.folder / "model", tiny_prepared.folder / "test.parquet")


def logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.arange(97, 117).view(2, 10)).logits


@pytest.fixture
def model_folder(tmp_path, tiny_prepared):
    return shutil.copytree(tiny_prepared.folder / "model", tmp_path / "model")


def share_of(monkeypatch, share):
    """Let the share of right answers be a function of the temperature."""
    tried = []

    def accuracy(*_paths, temperature, **_sizes):
        tried.append(temperature)
        return share(temperature)

    monkeypatch.setattr(starting_model, "accuracy", accuracy)
    return tried


def test_the_temperature_that_gives_a_quarter_is_found_and_divides_the_logits(model_folder, monkeypatch):
    # A quarter at τ = 1.4.
    tried = share_of(monkeypatch, lambda temperature: 1 / (1 + 3 * (temperature / 1.4) ** 4))
    before = logits(model_folder)
    found = standardise(model_folder, model_folder, wanted=0.25, n=9, max_response_tokens=44)
    # The share's slope there is −0.75 by ln τ, so 0.01 of it are 1.4 % of τ.
    assert found == pytest.approx(1.4, rel=0.014)
    assert found == tried[-1]
    assert torch.allclose(logits(model_folder), before / found, rtol=0, atol=1e-5 * before.abs().max())


@pytest.mark.parametrize(("share", "end"), [(0.1, 0.4), (0.9, 2.5)])
def test_out_of_reach_it_ends_at_the_nearest_end(model_folder, monkeypatch, share, end):
    tried = share_of(monkeypatch, lambda _: share)
    found = standardise(model_folder, model_folder, wanted=0.25, n=9, max_response_tokens=44)
    # Eight halvings of the range leave a 256th of it.
    assert math.log(found) == pytest.approx(math.log(end), abs=math.log(2.5 / 0.4) / 256 * 1.001)
    assert len(tried) == 8
