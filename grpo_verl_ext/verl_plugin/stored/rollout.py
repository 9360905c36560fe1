"""verl's single-turn agent loop with stored responses in the place of the first samples of a prompt.

The trainer puts the responses into the prompt's row (`Field.STORED_RESPONSES`), and asks for this agent loop
for training prompts alone. Session i answers with the i-th response, and asks the server where there is none.
All else is verl's: prompt tokens, reward, and the log-probs that the actor computes afterwards.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from verl.experimental.agent_loop.agent_loop import register
from verl.workers.rollout.replica import TokenOutput

from grpo_verl_ext.verl_plugin.config import STORED_AGENT_LOOP
from grpo_verl_ext.verl_plugin.rollout.agent_loops import ExtendedSingleTurnAgentLoop, StepRewardOutput
from grpo_verl_ext.verl_plugin.wire import Field


class StoredResponse(TypedDict):
    """A stored response.

    Attributes:
        token_ids: its T tokens, the end of turn included.
        log_probs: log-probs of the tokens under the policy that wrote them, (T,); None: not known.
        step: training step in which it was sampled; 0 for one given with the data.
    """

    token_ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32] | None
    step: int


class _StoredServer:
    """Answers an agent loop's request with a stored response."""

    def __init__(self, response: StoredResponse, version: int) -> None:
        self._response = response
        self._version = version

    async def generate(self, *, sampling_params: Mapping[str, Any], **_: object) -> TokenOutput:
        """Return the response, with recorded log-probs if the rollout is to have log-probs."""
        response = self._response
        recorded = response["log_probs"] if sampling_params.get("logprobs") else None
        return TokenOutput(
            token_ids=response["token_ids"].tolist(),
            log_probs=None if recorded is None else recorded.tolist(),
            extra_fields={
                Field.STORED_ORIGIN: {"step": response["step"], "log_probs": response["log_probs"]},
                # The version of the weights, from which verl computes the staleness of a response.
                "min_global_steps": self._version,
                "max_global_steps": self._version,
            },
        )


@register(STORED_AGENT_LOOP)
class _StoredSingleTurnAgentLoop(ExtendedSingleTurnAgentLoop):
    """verl's ``single_turn_agent`` that asks the server only where no response is stored."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> StepRewardOutput:
        """Generate as verl does, with the stored response of this session in the server's place."""
        column, session = kwargs.get(Field.STORED_RESPONSES), int(kwargs["session_id"])
        stored = column["responses"] if column else []
        if session < len(stored) and stored[session] is not None:
            # verl writes this column to the queue with each of the prompt's rows: without what is taken out.
            response, stored[session] = stored[session], None
            version = int(response["step"] or kwargs["global_steps"]) - 1
            self.server_manager = _StoredServer(response, version)
        return await super().run(sampling_params, **kwargs)
