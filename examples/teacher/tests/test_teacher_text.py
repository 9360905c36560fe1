"""Test what a teacher with its own tokenizer reads of a response, by the rule of `teacher.text`."""

import json
import random
from typing import Any

import pytest
import teachers
import torch
from gvpo_teacher.options import TeacherError
from gvpo_teacher.text import TextReader, check_same_tokens
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from grpo_verl_ext.utils.errors import SettingError

POLICY = teachers.tokenizer(259, "<|im_end|>")
TEACHER = teachers.tokenizer(330, "</s>")
MESSAGES = [{"role": "user", "content": "12 + 34?"}]
PIECES = [
    "46", " 46.", "\n\n", "So: ", "Größe ", "naïve café", "東京", "🙂", "x ≤ y", "</s>", "<|im_end|>",
    "<|user|>", "    def f(x):\n\treturn x", "<|assistant|>", "\u200b", "e\u0301", " ",
]  # fmt: skip
END = POLICY.eos_token_id


def reader(policy: Any = POLICY, teacher: Any = TEACHER, *, longest_prompt: int = 100) -> TextReader:
    return TextReader(
        policy, teacher, {policy.eos_token_id}, name="teacher", template={}, longest_prompt=longest_prompt
    )


def prompt_ids(tokenizer: Any = POLICY) -> list[int]:
    return tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False
    )


def written(text: str, *, complete: bool) -> list[int]:
    """A response of this text, in which nothing that looks special is."""
    return POLICY(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] + [END] * complete


def texts(number: int) -> list[str]:
    generator = random.Random(0)
    return ["".join(generator.choices(PIECES, k=generator.randint(1, 6))) for _ in range(number)]


def test_the_two_tokenizers_cut_differently():
    assert len(POLICY) < len(TEACHER)
    assert len(written("the sum of 12", complete=False)) == 13
    assert len(TEACHER("the sum of 12")["input_ids"]) < 13


@pytest.mark.parametrize("complete", [True, False])
def test_log_probs_of_200_texts_are_those_of_transformers(complete):
    """Computed apart: the teacher's tokens are put together here, of a template written here again."""
    scorer = teachers.model(len(TEACHER))
    of_bytes = TEACHER.get_vocab()
    before = [of_bytes["<|user|>"], *TEACHER("12 + 34?")["input_ids"], of_bytes["<|assistant|>"]]
    for text in texts(200):
        found = reader().tokens(MESSAGES, prompt_ids(), written(text, complete=complete))
        assert found is not None, text
        assert found.prompt == before
        body = found.response[:-1] if complete else found.response
        special = {of_bytes[each] for each in ("</s>", "<|user|>", "<|assistant|>")}
        assert special.isdisjoint(body), "special-looking text is text"
        assert TEACHER.decode(body) == text
        assert (found.response[-1] == TEACHER.eos_token_id) == complete
        ours = teachers.log_probs(scorer, found.prompt + found.response)[len(found.prompt) - 1 :].sum()
        inputs = torch.tensor([before + found.response])
        labels = torch.tensor([[-100] * len(before) + found.response])
        with torch.no_grad():
            loss = scorer(
                input_ids=inputs, labels=labels
            ).loss  # transformers' own mean over the labelled tokens
        assert ours.item() == pytest.approx(
            -loss.item() * len(found.response), rel=1e-6
        )  # its loss is in single precision


def test_a_text_cut_inside_a_character_has_no_log_prob():
    whole = written("東京", complete=False)
    assert reader().tokens(MESSAGES, prompt_ids(), whole[:3]) is not None
    assert reader().tokens(MESSAGES, prompt_ids(), whole[:4]) is None


def test_a_special_token_inside_has_no_log_prob():
    ids = written("46", complete=False)
    user = POLICY.convert_tokens_to_ids("<|user|>")
    assert reader().tokens(MESSAGES, prompt_ids(), [*ids, user, END]) is None
    assert reader().tokens(MESSAGES, prompt_ids(), [END, *ids, END]) is None


def test_a_special_token_that_the_settings_do_not_name_is_one(tmp_path):
    """As Llama 3's reserved tokens: special in tokenizer.json, and nowhere else."""
    POLICY.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["extra_special_tokens"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    policy = AutoTokenizer.from_pretrained(tmp_path)
    user = policy.convert_tokens_to_ids("<|user|>")
    assert user not in policy.all_special_ids
    ids = written("46", complete=False)
    assert reader(policy).tokens(MESSAGES, prompt_ids(), [*ids, user, END]) is None


MERGING = teachers.tokenizer(330, "<|im_end|>")
"""A policy that can spell a text in several ways."""


@pytest.mark.parametrize("text", ["the sum of 12", "Größe, naïve café", "So: </s> 46 "])
def test_a_text_counts_in_one_spelling_alone(text):
    whole = MERGING(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    letters = [
        MERGING.get_vocab()[letter]
        for letter in MERGING.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)[0][0]
    ]
    assert len(whole) < len(text.encode())
    found = reader(MERGING).tokens(MESSAGES, prompt_ids(MERGING), [*whole, MERGING.eos_token_id])
    assert found is not None
    assert TEACHER.decode(found.response[:-1]) == text
    first = MERGING.decode(letters)
    odd = [
        *letters,
        *MERGING(text.removeprefix(first), add_special_tokens=False, split_special_tokens=True)["input_ids"],
    ]
    assert MERGING.decode(odd) == text
    assert odd != whole
    assert reader(MERGING).tokens(MESSAGES, prompt_ids(MERGING), [*odd, MERGING.eos_token_id]) is None


def test_what_was_cut_off_of_a_text_is_in_its_tokenizers_spelling():
    for text in texts(50):
        whole = MERGING(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        for length in range(1, len(whole)):
            found = reader(MERGING).tokens(MESSAGES, prompt_ids(MERGING), whole[:length])
            inside_a_character = "\ufffd" in MERGING.decode(whole[:length])
            assert (found is None) == inside_a_character, (text, length)


def test_a_tokenizer_that_writes_a_space_before_a_text():
    """As Llama 2's: alone, a text begins with a token that it does not have after a prompt."""
    policy = teachers.tokenizer(330, "<|im_end|>")
    policy.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alone = policy("46", add_special_tokens=False)["input_ids"]
    *before, after = policy("<|assistant|>x46", add_special_tokens=False)["input_ids"]
    assert policy.decode(alone) == " 46"
    assert policy.decode([after]) == "46"
    found = reader(policy).tokens(MESSAGES, before, [after])
    assert found is not None
    assert TEACHER.decode(found.response) == "46"


def test_a_complete_response_ends_as_the_teachers_template_ends_an_answer():
    """Gemma's template ends a turn with a special token that is not its tokenizer's end token."""
    teacher = teachers.tokenizer(330, "</s>")
    teacher.chat_template = "{% for m in messages %}<|user|>{{ m['content'] }}<|assistant|>\n{% endfor %}"
    found = reader(teacher=teacher).tokens(MESSAGES, prompt_ids(), written("46", complete=True))
    assert found is not None
    assert found.response[-1] == teacher.get_vocab()["<|assistant|>"] != teacher.eos_token_id


def test_a_prompt_that_was_cut_for_the_policy_is_named():
    whole = prompt_ids()
    ids = written("46", complete=True)
    assert reader(longest_prompt=len(whole)).tokens(MESSAGES, whole, ids) is not None
    with pytest.raises(
        TeacherError,
        match=rf"of {len(whole)} tokens was cut to data.max_prompt_length=4 .*Type: .*filter_overlong.*=true",
    ):
        reader(longest_prompt=4).tokens(MESSAGES, whole[-4:], ids)


def test_an_empty_response():
    """Ended at once it has the teacher's end token; of no tokens at all it has no log-prob."""
    ended = reader().tokens(MESSAGES, prompt_ids(), [END])
    assert ended is not None
    assert ended.response == [TEACHER.eos_token_id]
    assert reader().tokens(MESSAGES, prompt_ids(), []) is None


def test_a_text_that_the_teacher_cannot_write_has_no_log_prob():
    from tokenizers import Tokenizer, models

    raw = Tokenizer(models.WordLevel({"<unk>": 0, "4": 1, "6": 2, "</s>": 3}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    digits = type(TEACHER)(tokenizer_object=raw, eos_token="</s>", unk_token="<unk>", chat_template="4")
    assert reader(teacher=digits).tokens(MESSAGES, prompt_ids(), written("7", complete=True)) is None


@pytest.mark.parametrize(
    ("what", "change"), [("chat_template", "chat_template"), ("eos_token_id", "eos_token")]
)
def test_a_teacher_that_cannot_read_a_chat_is_refused(what, change):
    teacher = teachers.tokenizer(330, "</s>")
    setattr(teacher, change, None)
    with pytest.raises(
        SettingError, match=rf"teacher\.reads is text, but the tokenizer .* no {what}.*Type: .*reads=tokens"
    ):
        reader(teacher=teacher)


def test_a_teacher_of_another_vocabulary_is_refused_where_it_would_be_given_tokens():
    check_same_tokens(POLICY, teachers.tokenizer(259, "<|im_end|>"), "a", "x=1")
    with pytest.raises(
        SettingError, match=r"is b, but it is given the policy's tokens, of which number \d+.*Type: x=1"
    ):
        check_same_tokens(POLICY, TEACHER, "b", "x=1")
