"""Score a whole response by a reward model, loaded here or served by verl."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_verl_ext.rewards.learned import LearnedReward, chat_text, judged_text
from grpo_verl_ext.verl_plugin.config import ClassifierOptions
from grpo_verl_ext.verl_plugin.rewards.server import RewardServer

_Chat = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Judged:
    """What a reward model reads.

    Attributes:
        messages: the chat before the response, verl's ``raw_prompt``; None if the batch has none.
        prompt: the same as text without special tokens.
        response: as text without special tokens.
    """

    messages: _Chat | None
    prompt: str
    response: str

    @property
    def chat(self) -> _Chat:
        """The messages.

        Raises:
            ValueError: there are none.
        """
        if self.messages is None:
            raise ValueError(
                "chat_template of a reward model is true, but the batch has no raw_prompt, the chat as a "
                "list; valid is a dataset that keeps it, as verl's own does"
            )
        return [*self.messages]


Score = Callable[[Judged], Awaitable[float]]


def loaded(options: ClassifierOptions) -> Score:
    """Load the model and return what asks it, in a thread so that verl's other requests go on."""
    if options.path is None:
        raise ValueError("a reward model has no path; valid is a folder")
    model = LearnedReward.load(options.path, dtype=options.dtype)

    def score(judged: Judged) -> float:
        if options.chat_template:
            return model.score_of_chat(judged.chat, judged.response)
        return model.scores([(judged.prompt, judged.response)])[0]

    async def asked(judged: Judged) -> float:
        return await asyncio.to_thread(score, judged)

    return asked


def served(server: RewardServer, *, name: str, tokenizer: Any) -> Score:
    """Return what asks a server.

    Args:
        name: of the model there.
        tokenizer: the model's.
    """

    def text(judged: Judged) -> str:
        if not server.options.chat_template:
            return judged_text(judged.prompt, judged.response, tokenizer.eos_token or "")
        # as in verl's own request: the server's tokenizer adds the beginning of sequence
        return chat_text(judged.chat, judged.response, tokenizer).removeprefix(tokenizer.bos_token or "")

    async def asked(judged: Judged) -> float:
        # As in verl's own request: the score itself, not its sigmoid.
        return await server.score({"model": name, "input": text(judged), "use_activation": False})

    return asked
