"""Where stored responses come from: the training data, or earlier steps of the training.

Of the data they are ``extra_info.responses`` of a prompt: texts, lists of token ids, or ``{token_ids,
log_probs}`` with the log-probs of the tokens under the policy that wrote them. A text gets the end of a turn.
Those of earlier steps are kept in the trainer's memory and in checkpoints.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pandas

from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.files import write_whole

_SECTION = "algorithm.grpo_ext.stored_responses"
_VALID = "a text, a list of token ids, or {token_ids, log_probs}"


class StoredResponse(TypedDict):
    """A response of T tokens, the end of turn included."""

    token_ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32] | None
    """Of the tokens under the policy that wrote them, (T,); None: not known."""
    step: int
    """Training step in which it was sampled; 0 for one given with the data."""


class _ResponseError(ValueError):
    """A response that cannot be trained on."""


@dataclass(frozen=True, kw_only=True)
class GivenResponses:
    """Reads and checks the responses of a prompt."""

    key: str
    """Name in ``extra_info``."""
    count: int
    """Of a prompt's samples so many are taken from the responses."""
    budget: int
    """In tokens."""
    tokenizer: Any
    end: int | None
    """The token that ends a text."""
    with_log_probs: bool
    """Whether each must have log-probs."""

    def of(self, extra_info: Mapping[str, Any] | None) -> list[StoredResponse]:
        """Return the first responses of a prompt, at most ``count``."""
        return [self._read(each) for each in self._given(extra_info)[: self.count]]

    def check(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """Check the responses of all rows of the training data, and return in words how many there are.

        A SettingError names the first response that cannot be trained on; there must be one at least.
        """
        counts = [self._checked(number, row.get("extra_info")) for number, row in enumerate(rows)]
        if not any(counts):
            raise self._wrong(
                f"none of the {len(counts)} rows of data.train_files has a response in extra_info.{self.key}",
                "a list of texts or of token ids there, null for a prompt without",
                f"{_SECTION}.key=<name in extra_info>, or {_SECTION}.share=0",
            )
        return (
            f"extra_info.{self.key}: {sum(counts)} responses to {sum(map(bool, counts))} of {len(counts)} "
            f"prompts, {sum(min(count, self.count) for count in counts)} of them within the share"
        )

    def _checked(self, row: int, extra_info: Mapping[str, Any] | None) -> int:
        where = f"extra_info.{self.key} of row {row}"
        try:
            given = self._given(extra_info)
            for number, each in enumerate(given):
                where = f"response {number} in extra_info.{self.key} of row {row}"
                self._read(each)
        except _ResponseError as error:
            raise self._wrong(f"{where} {error}") from error
        return len(given)

    def _wrong(self, seen: str, valid: str = "", fix: str = "") -> SettingError:
        return SettingError(f"{_SECTION}.key", self.key, seen=seen, valid=valid, fix=fix)

    def _given(self, extra_info: Mapping[str, Any] | None) -> Sequence[Any]:
        responses = (extra_info or {}).get(self.key)
        return [] if responses is None else _listed(responses, "a list of responses, or null")

    def _read(self, given: Any) -> StoredResponse:
        log_probs = given.get("log_probs") if isinstance(given, Mapping) else None
        if isinstance(given, str):
            token_ids = self._tokens_of(given)
        elif isinstance(given, Mapping):
            written = given.get("token_ids")
            token_ids = [] if written is None else _listed(written, "{token_ids} with a list of numbers")
        else:
            token_ids = _listed(given, _VALID)
        self._check_tokens(token_ids)
        if log_probs is None and self.with_log_probs:
            raise _ResponseError(
                "has no log_probs, and actor_rollout_ref.rollout.calculate_log_probs is true; type "
                "actor_rollout_ref.rollout.calculate_log_probs=false, or give {token_ids, log_probs}"
            )
        return StoredResponse(
            token_ids=np.array(token_ids, dtype=np.int32),
            log_probs=None if log_probs is None else _log_probs(log_probs, len(token_ids)),
            step=0,
        )

    def _tokens_of(self, text: str) -> list[int]:
        end = [] if self.end is None else [self.end]
        text = text.removesuffix("".join(self.tokenizer.convert_ids_to_tokens(end)))
        if not text:
            raise _ResponseError("is empty")
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        decoded = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if decoded != text:
            raise _ResponseError(
                f"does not survive the tokenizer, which makes {decoded[:40]!r}… of {text[:40]!r}…; valid are "
                "a text that it gives back, or token ids"
            )
        return [*ids, *end]

    def _check_tokens(self, token_ids: Sequence[Any]) -> None:
        if not token_ids:
            raise _ResponseError("is empty")
        vocabulary = len(self.tokenizer)
        for token in token_ids:
            if isinstance(token, bool) or not isinstance(token, int | np.integer):
                raise _ResponseError(f"has {token!r}; valid is {_VALID}")
            if not 0 <= token < vocabulary:
                raise _ResponseError(
                    f"has token {token}, which is of another tokenizer; valid is 0 … {vocabulary - 1}"
                )
        if len(token_ids) > self.budget:
            raise _ResponseError(
                f"has {len(token_ids)} tokens; valid are at most {self.budget}, data.max_response_length"
            )


def _listed(value: object, valid: str) -> list[Any]:
    if not isinstance(value, list | tuple | np.ndarray):
        raise _ResponseError(f"is {str(value)[:40]!r}; valid is {valid}")
    return list(value)


def _log_probs(given: object, tokens: int) -> Any:
    try:
        log_probs = np.array(given, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise _ResponseError(f"has log_probs that are not numbers: {error}") from error
    if log_probs.shape != (tokens,) or not (np.isfinite(log_probs) & (log_probs <= 0)).all():
        raise _ResponseError(f"has log_probs that are not {tokens} finite numbers ≤ 0, one for each token")
    return log_probs


_HISTORY_FILE = "response_history.parquet"
"""In the actor's folder of a checkpoint."""


def prompt_id(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a digest of a prompt's messages, by which it is known when it comes again."""
    try:
        text = json.dumps(messages, sort_keys=True, ensure_ascii=False)
    except TypeError as error:
        raise _wrong_history(
            f"a prompt has more than text ({error}), by which the history would know it", "prompts of text"
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
        return [each for each in self._of_prompt.get(prompt, []) if step - each["step"] <= self._max_age]

    def add(self, prompt: str, response: StoredResponse) -> None:
        """Keep a response; of the prompt's, the newest ``count`` stay, of one step the first."""
        kept = [*self._of_prompt.get(prompt, []), response]
        self._of_prompt[prompt] = sorted(kept, key=lambda each: -each["step"])[: self._count]

    def forget(self, step: int) -> None:
        """Drop the responses that no step after this one may use."""
        young = {prompt: self.of(prompt, step + 1) for prompt in self._of_prompt}
        self._of_prompt = {prompt: responses for prompt, responses in young.items() if responses}

    def save(self, folder: Path) -> None:
        """Write all responses to a file in the folder, atomically."""
        rows = [{"prompt": prompt, **each} for prompt, own in self._of_prompt.items() for each in own]
        buffer = io.BytesIO()
        pandas.DataFrame(rows, columns=["prompt", "token_ids", "log_probs", "step"]).to_parquet(buffer)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / _HISTORY_FILE, buffer.getvalue())

    def load(self, folder: Path, known: set[str]) -> None:
        """Read what `save` wrote. All its prompts must be ``known``: else this is another training."""
        file = folder / _HISTORY_FILE
        valid, start = "a checkpoint of this training with a history", "trainer.resume_mode=disable"
        if not file.is_file():
            raise _wrong_history(f"{file} does not exist", valid, start)
        rows = pandas.read_parquet(file).to_dict("records")
        if unknown := {row["prompt"] for row in rows} - known:
            seen = f"{file} has responses to {len(unknown)} prompts that data.train_files does not have"
            raise _wrong_history(seen, valid, start)
        self._of_prompt = {}
        for row in rows:
            response = StoredResponse(
                token_ids=row["token_ids"], log_probs=row["log_probs"], step=row["step"]
            )
            self._of_prompt.setdefault(row["prompt"], []).append(response)


def _wrong_history(seen: str, valid: str, *more: str) -> SettingError:
    key, data = f"{_SECTION}.source", f"{_SECTION}.source=data"
    fix = Line(*(more or (data,)), more=f", or {data}" if more else "")
    return SettingError(key, "history", seen=f"{key} is history, but {seen}", valid=valid, fix=fix)
