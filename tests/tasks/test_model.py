"""Test the initial model, its training examples and the output of the prepared folder."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2ForCausalLM

from grpo_verl_ext.tasks.causal_lm import IGNORED_LABEL, encode, sample
from grpo_verl_ext.tasks.chain_sum.model import build_model, build_tokenizer, warm_start
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings
from grpo_verl_ext.tasks.chain_sum.problems import every_problem, prompt, response


def test_the_model_has_about_half_a_million_parameters():
    model = build_model(TaskSettings(), build_tokenizer(), seed=1)
    # tied embedding 265·128, last norm 128; a layer has 4·128² of attention and 3·128 biases,
    # 3·128·256 of feed-forward and 2·128 of norms
    assert model.num_parameters() == 265 * 128 + 3 * (4 * 128**2 + 3 * 128 + 3 * 128 * 256 + 2 * 128) + 128
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_seed_decides_the_weights_and_torchs_own_generator_is_left_alone(tiny):
    state = torch.random.get_rng_state()
    first, again, other = (build_model(tiny, build_tokenizer(), seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_the_prepared_model_loads_and_stops_at_the_end_of_a_turn(tiny_prepared):
    folder = tiny_prepared.folder / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model) is Qwen2ForCausalLM
    assert model.dtype == torch.float32
    generation = GenerationConfig.from_pretrained(folder)
    assert (generation.eos_token_id, generation.pad_token_id) == (258, 256)
    assert (model.config.eos_token_id, model.config.pad_token_id) == (258, 256)


def test_only_the_response_and_its_end_are_labelled():
    ids, labels = encode(build_tokenizer(), [("1+2=?", "ab"), ("1+2+3=?", "c")], 9)
    # <|im_start|>user\n is 3 tokens, <|im_end|>\n<|im_start|>assistant\n 5; then the response and <|im_end|>
    assert ids.shape == labels.shape == (2, 3 + 7 + 5 + 2)
    assert labels[0].tolist() == [IGNORED_LABEL] * 13 + [97, 98, 258] + [IGNORED_LABEL]
    assert labels[1].tolist() == [IGNORED_LABEL] * 15 + [99, 258]
    assert ids[0, 13:].tolist() == [97, 98, 258, 256]


def test_sampling_ignores_the_models_own_penalty(tiny):
    """verl's rollout has none, whatever the model's generation settings say."""
    tokenizer = build_tokenizer()
    tokenizer.padding_side = "left"
    model = build_model(tiny, tokenizer, seed=1).eval()
    chats = [[{"role": "user", "content": "1+2=?"}]]
    how = {"temperature": 1.0, "max_response_tokens": 12, "seed": 1}
    wanted = sample(model, tokenizer, chats, **how)
    model.generation_config.repetition_penalty = 1.5
    assert sample(model, tokenizer, chats, **how).equal(wanted)


def test_a_response_beyond_the_budget_is_cut_and_has_no_end():
    _, labels = encode(build_tokenizer(), [("1+2=?", "abcd")], 3)
    assert labels[0, 13:].tolist() == [97, 98, 99]


def test_the_warm_start_repeats_to_the_bit_whatever_the_number_of_threads(tiny):
    def weights(threads_of_the_caller: int) -> dict[str, torch.Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads_of_the_caller)
        try:
            model = build_model(tiny, build_tokenizer(), seed=1)
            warm_start(model, build_tokenizer(), tiny, seed=1)
            assert torch.get_num_threads() == threads_of_the_caller
        finally:
            torch.set_num_threads(before)
        return model.state_dict()

    first, again = weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_the_loss_falls(tiny):
    tokenizer = build_tokenizer()
    model = build_model(tiny, tokenizer, seed=1)
    examples = [(prompt(terms), response(terms)) for terms in every_problem(3, "train")[:16]]
    ids, labels = encode(tokenizer, examples, 44)

    def loss() -> float:
        with torch.no_grad():
            return model(input_ids=ids, labels=labels).loss.item()

    before = loss()
    warm_start(model, tokenizer, replace(tiny, steps=60, slip_steps=0), seed=1)
    assert before == pytest.approx(5.56, abs=0.5)  # ln 265: it knows nothing
    assert loss() < 0.6 * before
