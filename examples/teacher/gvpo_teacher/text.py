"""A response in the tokens of a teacher that has a tokenizer of its own.

The rule, in this order:

1. A response that ends with one of the policy's end tokens is complete, and that token is taken off; others
   were cut off.
2. Its text is what decoding appends to the decoded prompt. A response has no text if a special token is left
   in it, or if its tokens end inside a character. Nor has one in other tokens than the policy's tokenizer
   writes for that text: the teacher's log-prob is of a text, and would count once for each way to spell it.
3. The teacher reads the messages in its own chat template, then the text in its own tokens, where text that
   looks like a special token is not one, then, if the response is complete, the token with which its template
   ends an answer. Its log-prob is that of text and end.
4. A text that the teacher's tokenizer does not give back, and one of no tokens at all, has no log-prob.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_verl_ext.utils import end_tokens
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import SECTION
from gvpo_teacher.options import TeacherError

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
        longest_prompt: tokens of the policy to which a prompt is cut.

    Raises:
        SettingError: see `end_of_answer`.
    """

    def __init__(
        self,
        policy: Any,
        teacher: Any,
        ends: Collection[int],
        *,
        name: str,
        template: Mapping[str, Any],
        longest_prompt: int,
    ) -> None:
        self._policy, self._teacher, self._name = policy, teacher, name
        self._template, self._longest_prompt = template, longest_prompt
        added = policy.added_tokens_decoder.items()
        self._ends, own = frozenset(ends), (number for number, token in added if token.special)
        self._special = frozenset([*policy.all_special_ids, *own])
        self._end = end_of_answer(teacher, name, template)

    def tokens(
        self, messages: Sequence[Mapping[str, Any]], prompt_ids: list[int], response_ids: list[int]
    ) -> TeacherTokens | None:
        """Return what the teacher reads; None where the response has no log-prob of the teacher.

        Raises:
            TeacherError: the policy was given a part of the prompt alone.
        """
        self._check_prompt(messages, prompt_ids)
        is_complete = bool(response_ids) and response_ids[-1] in self._ends
        text = self._text(prompt_ids, response_ids[:-1] if is_complete else response_ids)
        if text is None:
            return None
        response = _as_text(self._teacher, text)
        if _decoded(self._teacher, response) != text:
            return None
        response += [self._end] * is_complete
        return TeacherTokens(self._prompt(self._teacher, messages), response) if response else None

    def _text(self, prompt_ids: list[int], body: list[int]) -> str | None:
        if not self._special.isdisjoint(body):
            return None
        before, whole = _decoded(self._policy, prompt_ids), _decoded(self._policy, prompt_ids + body)
        text = whole.removeprefix(before)
        if not whole.startswith(before) or _UNDECODABLE in text:
            return None
        return text if body == _as_text(self._policy, text) or self._ends_with(whole, body) else None

    def _ends_with(self, whole: str, body: list[int]) -> bool:
        """Whether a tokenizer that writes a space before a text writes these tokens after the prompt."""
        ids: list[int] = self._policy(whole, add_special_tokens=False)["input_ids"]
        return ids[len(ids) - len(body) :] == body

    def _check_prompt(self, messages: Sequence[Mapping[str, Any]], prompt_ids: list[int]) -> None:
        if len(prompt_ids) < self._longest_prompt:
            return
        needed = len(self._prompt(self._policy, messages))
        if needed > len(prompt_ids):
            raise TeacherError(
                f"a prompt of {needed} tokens was cut to data.max_prompt_length={len(prompt_ids)} for the "
                f"policy, while the teacher {self._name} would read all of it. Type: "
                "data.filter_overlong_prompts=true"
            )

    def _prompt(self, tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        ids: list[int] = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=False, **self._template
        )
        return ids


def end_of_answer(teacher: Any, name: str, template: Mapping[str, Any]) -> int:
    """Return the special token with which a teacher's chat template ends an answer.

    That is its end token where the template writes none; some templates write another.

    Raises:
        SettingError: the teacher has no chat template, or neither token.
    """
    if teacher.chat_template is None:
        raise _unread(name, "chat_template")
    end = end_tokens.end_of_answer(teacher, template)
    if end is None:
        raise _unread(name, "eos_token_id")
    return end


def _unread(name: str, what: str) -> SettingError:
    return SettingError(
        _READS,
        "text",
        why=f"the tokenizer of the teacher {name} has no {what}, by which it would read a response",
        valid="a teacher with a chat template and an end token, or tokens",
        fix=f"{_READS}=tokens, or add it to {name}/tokenizer_config.json",
    )


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


def _as_text(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text, in which what looks like a special token is none."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return ids
