"""Test tokenizing the texts of a dump; the embedded task's tokenizer has a token for each byte."""

from pathlib import Path

import pytest

from grpo_verl_ext.anatomy.dump import AnatomyError, ids_of_prompt, load_tokenizer, response_length, token_ids
from grpo_verl_ext.tasks.chain_sum.model import build_tokenizer

TOKENIZER = build_tokenizer()


def dumped(chat: list[dict[str, str]]) -> tuple[str, list[int]]:
    """What verl writes of a chat, and the tokens that it was."""
    ids = TOKENIZER.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return TOKENIZER.decode(ids, skip_special_tokens=True), ids


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def test_lengths_count_the_end_within_the_budget() -> None:
    assert [response_length(4, budget) for budget in (None, 6, 5, 4, 3)] == [5, 5, 5, 4, 3]
    assert response_length(0, None) == 1


def test_texts_are_encoded_in_order_with_nothing_added() -> None:
    texts = [f"{number}+1" for number in range(200)] + [""]
    assert list(token_ids(TOKENIZER, texts)) == [list(text.encode()) for text in texts]


@pytest.mark.parametrize(
    "chat",
    [
        [user("3+4=?")],
        [user("")],
        [user("two\nlines, a (bracket) and a \\ + .*")],
        [system("be short"), user("3+4=?")],
    ],
)
def test_a_prompt_gets_its_special_tokens_back(chat: list[dict[str, str]]) -> None:
    text, ids = dumped(chat)
    assert "<|im_start|>" not in text
    assert ids_of_prompt(TOKENIZER, text) == ids


@pytest.mark.parametrize(
    "chat",
    [
        [user("1"), {"role": "assistant", "content": "2"}, user("3")],
        [user("say\nassistant\n")],
        [system("a\nuser\nb"), user("c")],
    ],
)
def test_what_could_be_several_chats_is_not_guessed(chat: list[dict[str, str]]) -> None:
    text, _ = dumped(chat)
    assert ids_of_prompt(TOKENIZER, text) is None


def test_no_prompt_of_the_template() -> None:
    assert ids_of_prompt(TOKENIZER, "Question: 1+1=?") is None
    plain = build_tokenizer()
    plain.chat_template = None
    assert ids_of_prompt(plain, "user\n1\nassistant\n") is None


def test_a_template_without_a_system_role() -> None:
    only_user = build_tokenizer()
    only_user.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + only_user.chat_template
    )
    text, ids = dumped([user("1")])
    assert ids_of_prompt(only_user, text) == ids
    assert ids_of_prompt(only_user, dumped([system("x"), user("1")])[0]) is None


def test_a_template_that_does_not_give_the_text_back() -> None:
    trimming = build_tokenizer()
    trimming.chat_template = trimming.chat_template.replace("message['content']", "message['content'] | trim")
    text, ids = dumped([user("1")])
    assert ids_of_prompt(trimming, text) == ids
    assert ids_of_prompt(trimming, dumped([user(" 1 ")])[0]) is None


def test_a_folder_without_a_tokenizer(tmp_path: Path, policy: Path) -> None:
    assert load_tokenizer(policy)("ab")["input_ids"] == [97, 98]
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(AnatomyError, match=f"{folder} has no tokenizer .*Type: --tokenizer <folder>"):
            load_tokenizer(folder)
