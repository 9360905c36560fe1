"""Test which token ends a response: the chat template's, if a rollout ends at it."""

from types import SimpleNamespace
from typing import Any

import pytest

from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer
from grpo_verl_ext.utils.end_tokens import end_of_answer, end_of_response, end_tokens

OTHER_END = """{% for each in messages %}<|user|>{{ each['content'] }}<end_of_turn>{% endfor %}"""


def tokenizer_with(template: str | None) -> Any:
    """Its end token is `<|im_end|>`; the template may end an answer with another special token."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end_of_turn>"]})
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(("given", "wanted"), [(None, {1}), (2, {1, 2}), ([1, 3], {1, 3})])
def test_a_model_ends_with_any_of_its_end_tokens(given: Any, wanted: set[int]) -> None:
    assert end_tokens(SimpleNamespace(eos_token_id=1), SimpleNamespace(eos_token_id=given)) == wanted
    assert end_tokens(SimpleNamespace(eos_token_id=None), None) == set(), "nor generation settings"


def test_a_text_ends_as_the_template_ends_an_answer_if_a_rollout_ends_there() -> None:
    tokenizer = tokenizer_with(OTHER_END)
    end, other = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert end_of_answer(tokenizer, {}) == other != end
    assert end_of_response(tokenizer, SimpleNamespace(eos_token_id=[end, other]), {}) == other
    for base_model in (None, SimpleNamespace(eos_token_id=end)):
        assert end_of_response(tokenizer, base_model, {}) == end


def test_without_a_chat_template_it_is_the_tokenizers_end() -> None:
    tokenizer = tokenizer_with(None)
    assert end_of_response(tokenizer, None, {}) == tokenizer.eos_token_id
    tokenizer.eos_token = None
    assert end_of_response(tokenizer, None, {}) is None


def test_the_embedded_tasks_answers_end_with_its_end_token() -> None:
    tokenizer = build_tokenizer()
    assert end_of_answer(tokenizer, {}) == tokenizer.eos_token_id
