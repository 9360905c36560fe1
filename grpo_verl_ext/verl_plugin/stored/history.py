"""Responses sampled earlier in this training, by prompt, kept in the trainer's memory and in checkpoints."""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.files import write_bytes_whole
from grpo_verl_ext.verl_plugin.stored.rollout import StoredResponse

FILE = "response_history.npz"
"""Name of the file in the actor's folder of a checkpoint."""


def prompt_id(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a digest of a prompt's messages, by which it is known when it comes again.

    Raises:
        SettingError: the messages have more than text.
    """
    try:
        text = json.dumps(messages, sort_keys=True, ensure_ascii=False)
    except TypeError as error:
        key = "algorithm.grpo_ext.stored_responses.source"
        raise SettingError(
            key,
            "history",
            why=f"a prompt has more than text ({error}), and the history knows a prompt by its text",
            valid="data, or prompts of text",
            fix=f"{key}=data",
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()


class ResponseHistory:
    """The newest responses to each prompt, at most ``count`` each and ``max_age`` training steps old.

    The age of a response is the step that uses it minus the step in which it was sampled. 8 bytes a token.
    """

    def __init__(self, count: int, max_age: int) -> None:
        self._count = count
        self._max_age = max_age
        self._of_prompt: dict[str, list[StoredResponse]] = {}

    def of(self, prompt: str, step: int) -> list[StoredResponse]:
        """Return the responses to a prompt that a training step may use, newest first."""
        return [each for each in self._of_prompt.get(prompt, []) if self._is_young(each, step)]

    def add(self, prompt: str, response: StoredResponse) -> None:
        """Keep a response; of the prompt's, the newest ``count`` stay, of one step the first."""
        kept = [*self._of_prompt.get(prompt, []), response]
        self._of_prompt[prompt] = sorted(kept, key=lambda each: -(each["step"] or 0))[: self._count]

    def forget(self, step: int) -> None:
        """Drop the responses that no step after this one may use."""
        young = {
            prompt: [each for each in responses if self._is_young(each, step + 1)]
            for prompt, responses in self._of_prompt.items()
        }
        self._of_prompt = {prompt: responses for prompt, responses in young.items() if responses}

    def _is_young(self, response: StoredResponse, step: int) -> bool:
        return step - (response["step"] or 0) <= self._max_age

    def save(self, folder: Path) -> None:
        """Write all responses to a file in the folder, atomically."""
        rows = [(prompt, each) for prompt, responses in self._of_prompt.items() for each in responses]
        buffer = io.BytesIO()
        np.savez(
            buffer,
            prompts=np.array([prompt for prompt, _ in rows], dtype="S64"),
            steps=np.array([each["step"] for _, each in rows], dtype=np.int64),
            lengths=np.array([len(each["token_ids"]) for _, each in rows], dtype=np.int64),
            token_ids=_joined((each["token_ids"] for _, each in rows), np.int32),
            log_probs=_joined((each["log_probs"] for _, each in rows), np.float32),
        )
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes_whole(folder / FILE, buffer.getvalue())

    def load(self, folder: Path, known: set[str]) -> None:
        """Read what `save` wrote.

        Args:
            folder: the folder.
            known: ids of the prompts of the training data.

        Raises:
            SettingError: there is no file, or it has a prompt that the data lack: to continue would be
                another training.
        """
        file = folder / FILE
        if not file.is_file():
            raise _no_history(f"{file} does not exist")
        with np.load(file) as saved:
            prompts = [prompt.decode() for prompt in saved["prompts"].tolist()]
            ends = np.cumsum(saved["lengths"])[:-1]
            token_ids = np.split(saved["token_ids"], ends)
            log_probs = np.split(saved["log_probs"], ends)
            steps = saved["steps"].tolist()
        unknown = set(prompts) - known
        if unknown:
            raise _no_history(
                f"{file} has responses to {len(unknown)} prompts that data.train_files does not have"
            )
        self._of_prompt = {}
        # Split at no place, an empty array is still one part.
        for prompt, ids, recorded, step in zip(prompts, token_ids, log_probs, steps, strict=False):
            response = StoredResponse(token_ids=ids, log_probs=recorded, step=step)
            self._of_prompt.setdefault(prompt, []).append(response)


def _joined(arrays: Iterable[Any], dtype: Any) -> Any:
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype)


def _no_history(seen: str) -> SettingError:
    key = "algorithm.grpo_ext.stored_responses.source"
    return SettingError(
        key,
        "history",
        seen=f"{key} is history, but {seen}",
        valid="a checkpoint of a training with the same data and a history",
        fix=f"trainer.resume_mode=disable, or {key}=data",
    )
