"""A response in the tokens of a teacher that has a tokenizer of its own.

The rule, in this order:

1. A response that ends with one of the policy's end tokens is complete, and that token is taken off; others
   were cut off.
2. Its text is what decoding appends to the decoded prompt. A response has no text if a special token is left
   in it, or if its tokens end inside a character.
3. The teacher reads the messages in its own chat template, then the text in its own tokens, where text that
   looks like a special token is not one, then its end token if the response is complete. Its log-prob is that
   of text and end token.
4. A text that the teacher's tokenizer does not give back, and one of no tokens at all, has no log-prob.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import SECTION

_UNDECODABLE = "�"
"""What decoders put in the place of bytes that are no character."""
_READS = f"{SECTION}.teacher.reads"


class TeacherTokens(NamedTuple):
    """What a teacher's server is given: the prompt's tokens, and those whose log-probs count."""

    prompt: list[int]
    response: list[int]


class TextReader:
    """Turns responses of a policy into tokens of its teacher.

    Args:
        policy: the policy's tokenizer.
        teacher: the teacher's tokenizer.
        ends: the policy's end tokens.
        name: the teacher's folder, for messages.
        template: what the training passes to chat templates.

    Raises:
        SettingError: the teacher has no chat template, or no end token.
    """

    def __init__(
        self, policy: Any, teacher: Any, ends: Collection[int], name: str, template: Mapping[str, Any]
    ) -> None:
        for what in ("chat_template", "eos_token_id"):
            if getattr(teacher, what, None) is None:
                raise SettingError(
                    _READS,
                    "text",
                    why=f"the tokenizer of the teacher {name} has no {what}, by which it would read a "
                    "response",
                    valid="a teacher with a chat template and an end token, or tokens",
                    fix=f"{_READS}=tokens, or add it to {name}/tokenizer_config.json",
                )
        self._policy, self._teacher, self._template = policy, teacher, template
        self._ends, self._special = frozenset(ends), frozenset(policy.all_special_ids)

    def tokens(
        self, messages: Sequence[Mapping[str, Any]], prompt_ids: list[int], response_ids: list[int]
    ) -> TeacherTokens | None:
        """Return what the teacher reads; None where the response has no log-prob of the teacher."""
        is_complete = bool(response_ids) and response_ids[-1] in self._ends
        text = self._text(prompt_ids, response_ids[:-1] if is_complete else response_ids)
        if text is None:
            return None
        response: list[int] = self._teacher(text, add_special_tokens=False, split_special_tokens=True)[
            "input_ids"
        ]
        if _decoded(self._teacher, response) != text:
            return None
        response += [self._teacher.eos_token_id] * is_complete
        return TeacherTokens(self._prompt(messages), response) if response else None

    def _text(self, prompt_ids: list[int], body: list[int]) -> str | None:
        if not self._special.isdisjoint(body):
            return None
        before, whole = _decoded(self._policy, prompt_ids), _decoded(self._policy, prompt_ids + body)
        text = whole.removeprefix(before)
        return None if not whole.startswith(before) or _UNDECODABLE in text else text

    def _prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        ids: list[int] = self._teacher.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=False, **self._template
        )
        return ids


def check_same_tokens(policy: Any, teacher: Any, name: str, fix: str) -> None:
    """Refuse a teacher to whom some token of the policy is another.

    Raises:
        SettingError: the first token that differs.
    """
    theirs = teacher.get_vocab()
    for token, number in policy.get_vocab().items():
        if theirs.get(token) != number:
            where = f"is number {theirs[token]}" if token in theirs else "is missing"
            raise SettingError(
                "distillation.teacher_models",
                name,
                why=f"it is given the policy's tokens, of which number {number}, {token!r}, {where} in its "
                "own vocabulary",
                valid="a teacher with the policy's tokenizer, or one that reads text",
                fix=fix,
            )


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
