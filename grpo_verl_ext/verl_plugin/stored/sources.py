"""Where stored responses come from: the training data, or earlier steps of the training.

Of the data they are ``extra_info.responses`` of a prompt: texts, lists of token ids, or ``{token_ids,
log_probs}`` with the log-probs of the tokens under the policy that wrote them. A text gets the end of a turn.
Those of earlier steps are kept in the trainer's memory and in checkpoints.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import numpy.typing as npt
import pandas
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.files import write_whole

_SECTION = "algorithm.grpo_ext.stored_responses"
_PLAIN = BeforeValidator(  # numpy's numbers, too, as parquet files have them
    lambda given: (
        [each.item() if isinstance(each, np.generic) else each for each in given]
        if isinstance(given, list | tuple | np.ndarray)
        else given
    )
)


class StoredResponse(TypedDict):
    """A response of T tokens, the end of turn included."""

    token_ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32] | None
    """Of the tokens under the policy that wrote them, (T,); None: not known."""
    step: int
    """Training step in which it was sampled; 0 for one given with the data."""


class _Tokens(BaseModel):
    model_config = ConfigDict(strict=True)

    token_ids: Annotated[list[int], Field(min_length=1), _PLAIN]
    log_probs: Annotated[list[Annotated[float, Field(ge=-3e38, le=0)]] | None, _PLAIN] = None


@dataclass(frozen=True, kw_only=True)
class GivenResponses:
    """Reads and checks the responses of a prompt."""

    key: str  # name in ``extra_info``
    count: int  # so many of a prompt's samples are taken from the responses
    budget: int  # in tokens
    tokenizer: Any
    end: int | None  # the token that ends a text
    with_log_probs: bool  # whether each must have log-probs

    def of(self, extra_info: Mapping[str, Any] | None) -> list[StoredResponse]:
        """Return the first responses of a prompt, at most ``count``."""
        return [self._read(each) for each in self._given(extra_info)[: self.count]]

    def check(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """Check the responses of all rows of the training data, and return in words how many there are.

        A SettingError names the first response that cannot be trained on; there must be one at least.
        """
        key, counts = f"{_SECTION}.key", []
        for number, row in enumerate(rows):
            where = f"extra_info.{self.key} of row {number}"
            try:
                given = self._given(row.get("extra_info"))
                for place, each in enumerate(given):
                    where = f"response {place} in extra_info.{self.key} of row {number}"
                    self._read(each)
            except ValueError as error:
                raise SettingError(key, self.key, seen=f"{where} {error}") from error
            counts.append(len(given))
        if not any(counts):
            raise SettingError(
                key,
                self.key,
                seen=f"none of the {len(counts)} rows of data.train_files has a response in "
                f"extra_info.{self.key}",
                valid="a list of texts or of token ids there, null for a prompt without",
                fix=f"{key}=<name in extra_info>, or {_SECTION}.share=0",
            )
        return (
            f"extra_info.{self.key}: {sum(counts)} responses to {sum(map(bool, counts))} of {len(counts)} "
            f"prompts, {sum(min(count, self.count) for count in counts)} of them within the share"
        )

    def _given(self, extra_info: Mapping[str, Any] | None) -> list[Any]:
        responses = (extra_info or {}).get(self.key)
        if not isinstance(responses, list | tuple | np.ndarray | None):
            raise ValueError(f"is {str(responses)[:40]!r}; valid is a list of responses, or null")
        return [] if responses is None else [*responses]

    def _read(self, given: Any) -> StoredResponse:
        if isinstance(given, str):
            end = [] if self.end is None else [self.end]
            text = given.removesuffix("".join(self.tokenizer.convert_ids_to_tokens(end)))
            if not text:
                raise ValueError("is empty")
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            back = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            if back != text:
                raise ValueError(
                    f"does not survive the tokenizer, which makes {back[:40]!r}… of {text[:40]!r}…; valid "
                    "are a text that it returns unchanged, or token ids"
                )
            given = {"token_ids": [*ids, *end]}
        try:
            read = _Tokens.model_validate(given if isinstance(given, dict) else {"token_ids": given})
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise ValueError(
                f"has {where}={str(wrong['input'])[:40]} ({wrong['msg']}); valid is a text, a list of token "
                f"ids, or {{token_ids, log_probs}} with a finite number ≤ 0 for each token"
            ) from error
        token_ids, log_probs, vocabulary = read.token_ids, read.log_probs, len(self.tokenizer)
        count = len(token_ids)
        if foreign := [token for token in token_ids if not 0 <= token < vocabulary]:
            raise ValueError(
                f"has token {foreign[0]}, which is of another tokenizer; valid is 0 … {vocabulary - 1}"
            )
        if count > self.budget:
            raise ValueError(f"has {count} tokens; valid are at most {self.budget}, data.max_response_length")
        if log_probs is None and self.with_log_probs:
            raise ValueError(
                "has no log_probs, and actor_rollout_ref.rollout.calculate_log_probs is true; type "
                "actor_rollout_ref.rollout.calculate_log_probs=false, or give {token_ids, log_probs}"
            )
        if log_probs is not None and len(log_probs) != count:
            raise ValueError(f"has {len(log_probs)} log_probs; valid are {count}, one for each token")
        return StoredResponse(
            token_ids=np.array(token_ids, dtype=np.int32),
            log_probs=None if log_probs is None else np.array(log_probs, dtype=np.float32),
            step=0,
        )


_HISTORY_FILE = "response_history.parquet"
"""In the actor's folder of a checkpoint."""


@dataclass
class ResponseHistory:
    """The newest responses to each prompt, at most ``count`` each and ``max_age`` training steps old.

    The age of a response is the step that uses it minus the step in which it was sampled. 8 bytes a token.
    """

    count: int
    max_age: int
    _of_prompt: dict[str, list[StoredResponse]] = field(default_factory=dict)

    @staticmethod
    def prompt_id(messages: Sequence[Mapping[str, Any]]) -> str:
        """Return a digest of a prompt's messages, by which it is known when it comes again."""
        try:
            text = json.dumps(messages, sort_keys=True, ensure_ascii=False)
        except TypeError as error:
            seen = f"a prompt has more than text ({error}), and the history knows prompts by their text"
            raise _wrong_history(seen, "prompts of text", f"~{_SECTION}") from error
        return hashlib.sha256(text.encode()).hexdigest()

    def of(self, prompt: str, step: int) -> list[StoredResponse]:
        """Return the responses to a prompt that a training step may use, newest first."""
        return [each for each in self._of_prompt.get(prompt, []) if step - each["step"] <= self.max_age]

    def add(self, prompt: str, response: StoredResponse) -> None:
        """Keep a response; of the prompt's, the newest ``count`` stay, of one step the first."""
        kept = [*self._of_prompt.get(prompt, []), response]
        self._of_prompt[prompt] = sorted(kept, key=lambda each: -each["step"])[: self.count]

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
        rows: list[Any] = pandas.read_parquet(file).to_dict("records") if file.is_file() else []
        unknown = len({row["prompt"] for row in rows} - known)
        if unknown or not file.is_file():
            seen = f"{file} does not exist"
            if unknown:
                seen = f"{file} has responses to {unknown} prompts that data.train_files does not have"
            valid = "a checkpoint of this training with a history"
            raise _wrong_history(seen, valid, "trainer.resume_mode=disable")
        self._of_prompt = {}
        for row in rows:
            self._of_prompt.setdefault(row.pop("prompt"), []).append(row)


def _wrong_history(seen: str, valid: str, line: str) -> SettingError:
    key = f"{_SECTION}.source"
    fix = Line(line, more=f", or {key}=data")
    return SettingError(key, "history", seen=f"{key} is history, but {seen}", valid=valid, fix=fix)
