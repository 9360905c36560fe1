"""Read the rollouts in verl's ``trainer.rollout_data_dir`` step by step, and tokenise their texts again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from grpo_verl_ext.runs.dumps import CorruptDumpError, Response, read_dump

HOW_TO_DUMP = "Valid is what a training leaves that was given: trainer.rollout_data_dir=<folder>"


class AnatomyError(ValueError):
    """The dump, the tokenizer or a model cannot be used; the message has the line to type."""


def read_steps(dump: Path) -> Iterator[list[Response]]:
    """Yield the responses of each step, with one file in memory at a time.

    Args:
        dump: a folder with ``1.jsonl``, ``2.jsonl``, …, or one such file; files of other names are ignored.

    Raises:
        AnatomyError: no such files, or a line is not a record that verl wrote; the file is left as it is.
    """
    step = attrgetter("step")
    for file in _files(dump):
        try:
            responses = read_dump(file)
        except CorruptDumpError as error:
            raise AnatomyError(str(error)) from error
        for _, of_step in groupby(sorted(responses, key=step), key=step):
            yield _of_one_output(list(of_step), file)


def _of_one_output(responses: list[Response], file: Path) -> list[Response]:
    if any(response.number for response in responses):
        raise AnatomyError(
            f"{file} has responses of several outputs, as some agent loops write them, of which the last "
            f"alone has the reward; valid are responses of one output. Type in the training: "
            f"actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent"
        )
    return responses


def _files(dump: Path) -> list[Path]:
    if dump.is_file():
        return [dump]
    if not dump.is_dir():
        raise AnatomyError(f"{dump} is neither a folder nor a file. {HOW_TO_DUMP}")
    files = [file for file in dump.glob("*.jsonl") if file.stem.isdigit()]
    if not files:
        raise AnatomyError(f"{dump} has no 1.jsonl, 2.jsonl, …. {HOW_TO_DUMP}")
    return sorted(files, key=lambda file: int(file.stem))


_AT_ONCE = 64
"""Texts per call of the tokenizer: ids are Python lists, which take more memory than the texts."""

_ROLES = (("user",), ("system", "user"))
"""Roles of the chats that are tried for a prompt."""


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a Hugging Face folder, without any download."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise AnatomyError(
            f"{folder} has no tokenizer that transformers can read. Valid is a folder with tokenizer.json, "
            f"such as the training's actor_rollout_ref.model.path. Type: --tokenizer <folder>"
        ) from error


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the ids of each text, without special tokens."""
    for start in range(0, len(texts), _AT_ONCE):
        yield from tokenizer(texts[start : start + _AT_ONCE], add_special_tokens=False)["input_ids"]


def response_length(text_tokens: int, budget: int | None) -> int:
    """Return a response's length from the tokens of its text: one more for the end token, up to the budget.

    The text is tokenised again, so the number can differ a little from that of the sampled tokens.
    """
    return text_tokens + 1 if budget is None else min(text_tokens + 1, budget)


def ids_of_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int] | None:
    """Return the ids, special tokens included, of the chat whose decoded text is exactly ``prompt``.

    The user's message, or the system's and the user's, is the text between the words of the chat template,
    where these occur once; rendered again it must give the same text. None if that fails: a chat of several
    turns, words of the template in a message, a tokenizer without a template.
    """
    if tokenizer.chat_template is None:
        return None
    for roles in _ROLES:
        try:
            chat = _chat(tokenizer, prompt, roles)
            ids = [] if chat is None else _rendered(tokenizer, chat)
        except TemplateError:  # raised by templates that do not support a system message
            continue
        if ids and _text(tokenizer, ids) == prompt:
            return ids
    return None


def _chat(
    tokenizer: PreTrainedTokenizerBase, prompt: str, roles: tuple[str, ...]
) -> list[dict[str, str]] | None:
    places = [f"PLACE-{number}-OF-A-MESSAGE" for number in range(len(roles))]
    template = _text(tokenizer, _rendered(tokenizer, _messages(roles, places)))
    words = re.split("|".join(places), template)
    found = re.fullmatch("(.*)".join(map(re.escape, words)), prompt, re.DOTALL)
    if found is None or any(prompt.count(each) > 1 for each in words[1:]):
        return None
    return _messages(roles, found.groups())


def _messages(roles: Sequence[str], contents: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]


def _rendered(tokenizer: PreTrainedTokenizerBase, chat: list[dict[str, str]]) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return ids


def _text(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text
