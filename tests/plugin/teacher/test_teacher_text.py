"""Test what a teacher with its own tokenizer reads of a response, by the rule of `teacher.text`."""

import random
from typing import Any

import pytest
import teachers
import torch

from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.teacher.text import TextReader, check_same_tokens

POLICY = teachers.tokenizer(259, "<|im_end|>")
TEACHER = teachers.tokenizer(330, "</s>")
MESSAGES = [{"role": "user", "content": "12 + 34?"}]
PIECES = [
    "46", " 46.", "\n\n", "So: ", "Größe ", "naïve café", "東京", "🙂", "x ≤ y", "</s>", "<|im_end|>",
    "<|user|>", "    def f(x):\n\treturn x", "<|assistant|>", "\u200b", "e\u0301", " ",
]  # fmt: skip
END = POLICY.eos_token_id


def reader(policy: Any = POLICY, teacher: Any = TEACHER) -> TextReader:
    return TextReader(policy, teacher, {policy.eos_token_id}, "teacher", {})


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


def test_an_empty_response():
    """Ended at once it has the teacher's end token; of no tokens at all it has no log-prob."""
    ended = reader().tokens(MESSAGES, prompt_ids(), [END])
    assert ended is not None
    assert ended.response == [TEACHER.eos_token_id]
    assert reader().tokens(MESSAGES, prompt_ids(), []) is None


def test_a_text_that_the_teacher_cannot_write_has_no_log_prob():
    from tokenizers import Tokenizer, models, pre_tokenizers

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
