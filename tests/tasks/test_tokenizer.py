"""Test the tokenizer, fresh and as ``AutoTokenizer`` loads it from the prepared model folder."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer

WORDS = build_tokenizer().get_added_vocab()


@pytest.fixture(scope="module", params=["fresh", "loaded"])
def tokenizer(request, tiny_prepared):
    if request.param == "fresh":
        return build_tokenizer()
    return AutoTokenizer.from_pretrained(tiny_prepared.folder / "model")


@given(text=st.text().filter(lambda text: not any(word in text for word in WORDS)))
def test_any_text_is_its_utf8_bytes_and_comes_back(tokenizer, text):
    composed = unicodedata.normalize("NFC", text)
    ids = tokenizer.encode(text)
    assert ids == list(composed.encode())
    assert tokenizer.decode(ids) == composed


def test_marks_are_one_token_each_and_are_stripped_as_special(tokenizer):
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [256, 257, 258]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (256, 258)
    assert tokenizer.decode([257, 65, 258, 256], skip_special_tokens=True) == "A"


def test_roles_and_tags_are_one_token_each_and_are_text(tokenizer):
    assert tokenizer.encode("user\nassistant\n\n") == [259, 10, 260, 10, 10]
    text = "<reasoning>1+2=3;</reasoning><answer>3</answer>"
    ids = [261, *b"1+2=3;", 262, 263, *b"3", 264]
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(tokenizer) == 265


def test_the_chat_template_is_qwens_without_a_system_prompt(tokenizer):
    chat = [{"role": "user", "content": "1+2=?"}, {"role": "assistant", "content": "3"}]
    both = "<|im_start|>user\n1+2=?<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n"
    assert tokenizer.apply_chat_template(chat, tokenize=False) == both
    asked = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "<|im_start|>user\n1+2=?<|im_end|>\n<|im_start|>assistant\n"


def test_verls_builder_for_qwen2_takes_it(tokenizer):
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    builder = create_continuous_token_builder(tokenizer=tokenizer, hf_model_type="qwen2")
    assert type(builder).__name__ == "QwenContinuousTokenBuilder"
