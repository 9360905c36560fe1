"""Ask a reward server over HTTP: a time limit for each attempt, retries, and an error that names the server.

verl logs an error of a reward and trains on the responses that are left. So the error is also reported to the
trainer's process, whose watchdog ends the training with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from grpo_verl_ext.utils.errors import RewardServerError, SettingError
from grpo_verl_ext.verl_plugin.config import ClassifierOptions
from grpo_verl_ext.verl_plugin.wire import report_failure

logger = logging.getLogger(__name__)

PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the first retry, doubled each time, and at most; as verl's own requests have them."""
_AGAIN = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Answers below 500 after which another attempt may succeed."""


@dataclass(frozen=True)
class RewardServer:
    """A server that speaks vLLM's ``/classify``.

    Attributes:
        url: address without ``/classify``.
        options: time limit, retries, and the variable that holds the token.
        section: key of the options, for messages.
    """

    url: str
    options: ClassifierOptions
    section: str

    def __post_init__(self) -> None:
        """Refuse a variable for the token that this process lacks."""
        self._headers()

    async def score(self, request: dict[str, Any]) -> float:
        """Return the score in the server's answer.

        Raises:
            RewardServerError: no answer within the limits, or another answer than a score.
        """
        for attempt in range(self.options.retries + 1):
            if attempt:
                await asyncio.sleep(min(PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE))
            try:
                return await self._attempt(request)
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                why = _in_words(error, self.options.timeout)
                logger.warning("attempt %d at %s: %s", attempt + 1, self.url, why)
                if isinstance(error, aiohttp.ClientResponseError) and not (
                    error.status in _AGAIN or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
                ):
                    raise self._ended(why) from error
        attempts = f"{attempt + 1} attempt{'s' * (attempt > 0)}"
        raise self._ended(f"gave no score in {attempts}, of which the last {why}")

    async def _attempt(self, request: dict[str, Any]) -> float:
        limit = aiohttp.ClientTimeout(total=self.options.timeout)
        async with (
            aiohttp.ClientSession(timeout=limit, headers=self._headers()) as session,
            session.post(f"{self.url.rstrip('/')}/classify", json=request) as answer,
        ):
            answer.raise_for_status()
            text = await answer.text()
            try:
                return float((await answer.json(content_type=None))["data"][-1]["probs"][-1])
            except (ValueError, LookupError, TypeError) as error:
                raise self._ended(f"answered {text[:200]!r}, which holds no score") from error

    def _headers(self) -> dict[str, str]:
        name = self.options.token_env
        if name is None:
            return {}
        if not os.environ.get(name):
            raise SettingError(
                f"{self.section}.token_env",
                name,
                why="verl's reward process has no such environment variable",
                valid="a variable that is set on every node before Ray starts",
                fix=f"export {name}=<token>",
            )
        return {"Authorization": f"Bearer {os.environ[name]}"}

    def _ended(self, why: str) -> RewardServerError:
        error = RewardServerError(
            f"the reward server {self.url} {why}. {self.section}.timeout is {self.options.timeout:g} "
            f"seconds, .retries {self.options.retries}. Once it answers, type the same command again: the "
            f"training goes on from the last checkpoint"
        )
        report_failure(error)
        return error


def _in_words(error: Exception, limit: float) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"answered {error.status} {error.message}"
    if isinstance(error, asyncio.TimeoutError):
        return f"took more than {limit:g} seconds"
    return f"failed: {error}"
