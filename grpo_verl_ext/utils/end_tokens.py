"""The tokens with which a model ends a response, by its tokenizer, chat template and generation settings."""

from collections.abc import Mapping
from typing import Any


def end_tokens(tokenizer: Any, generation: Any) -> set[int]:
    """Return the tokens at which a model's response ends: its tokenizer's and its generation settings'."""
    given = getattr(generation, "eos_token_id", None)
    settings = [given] if given is None or isinstance(given, int) else given
    return {each for each in (tokenizer.eos_token_id, *settings) if each is not None}


def end_of_answer(tokenizer: Any, template: Mapping[str, Any]) -> int | None:
    """Return the special token with which a chat template ends an answer.

    That is the tokenizer's end token where the template writes none; some templates write another.
    ``template`` has more arguments of the chat template.
    """
    # with a text that templates leave as it is
    chat = [{"role": role, "content": "answer"} for role in ("user", "assistant")]
    closing = tokenizer.apply_chat_template(chat, tokenize=False, **template).rpartition("answer")[2]
    added = tokenizer.added_tokens_decoder.items()
    special = {*tokenizer.all_special_ids, *(number for number, token in added if token.special)}
    ids = tokenizer(closing, add_special_tokens=False)["input_ids"]
    end: int | None = next((number for number in ids if number in special), tokenizer.eos_token_id)
    return end


def end_of_response(tokenizer: Any, generation: Any, template: Mapping[str, Any]) -> int | None:
    """Return the token that ends a response which is given as a text.

    That is the one of the chat template, if a rollout ends at it, else the tokenizer's end token. A base
    model's template may end an answer with a token that the model does not end with.
    """
    end: int | None = tokenizer.eos_token_id
    if tokenizer.chat_template is None:
        return end
    of_template = end_of_answer(tokenizer, template)
    return of_template if of_template in end_tokens(tokenizer, generation) else end
