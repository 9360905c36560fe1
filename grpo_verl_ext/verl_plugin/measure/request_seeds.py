"""Give each request to the rollout's servers a seed of its own: ``algorithm.grpo_ext.seed_requests``.

Trainings with the same seed then draw the same random numbers for the same prompt, step and session, whatever
their algorithms. Where the engine's arithmetic allows, two runs of one training are the same run.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.verl_plugin.config import SEED_REQUESTS


def request_seed(
    seed: int, *, step: int, index: object, session: int, turn: int, prompt_ids: Sequence[int]
) -> int:
    """Return 63 bits of a hash of the arguments; vLLM takes 64 with a sign, and -1 for no seed.

    Args:
        seed: of the training.
        step: ``global_steps`` of the rollout; a validation has that of the step before it.
        index: ``extra_info.index`` of the prompt; 0 for all where the data set has none.
        session: number of the response among those to the prompt.
        turn: number of the request among those for the response.
        prompt_ids: tokens of the first turn, which tell apart prompts of one index, and thus validation and
            training, which verl does not tell an agent loop.
    """
    parts = [seed, int(step), str(index), int(session), turn, [int(token) for token in prompt_ids]]
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:8], "big") >> 1


class SeededServer:
    """verl's client of the servers, for the requests of one response, with a seed in each.

    A prompt that occurs twice in a step, as in a batch over the end of an epoch, gets equal seeds: verl's
    ``uid``, which would tell the two apart, differs from run to run.
    """

    def __init__(self, server: Any, seed: int, row: Mapping[str, Any]) -> None:
        """Take the client and the fields of the row that verl passes to an agent loop.

        Raises:
            SettingError: verl does not say which of the prompt's responses this is.
        """
        if "session_id" not in row:
            raise SettingError(
                SEED_REQUESTS,
                seed,
                why="this trainer does not number the responses to a prompt, which would all be equal",
                valid="verl's v1 trainer",
                fix=Line("trainer.use_v1=true", more=f", or ~{SEED_REQUESTS}"),
            )
        self._server = server
        self._seed = seed
        self._row = row
        self._turn = 0
        self._prompt_ids: Sequence[int] = ()

    async def generate(
        self, *args: Any, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        """Generate as the client does; ``sampling_params``, which responses share, is copied."""
        if self._turn == 0:
            self._prompt_ids = prompt_ids
        row, turn, self._turn = self._row, self._turn, self._turn + 1
        seed = request_seed(
            self._seed,
            step=row["global_steps"],
            index=row["index"],
            session=row["session_id"],
            turn=turn,
            prompt_ids=self._prompt_ids,
        )
        return await self._server.generate(
            *args, prompt_ids=prompt_ids, sampling_params={**sampling_params, "seed": seed}, **kwargs
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)
