"""verl's agent loops with step rewards, seeds and stored responses: ``default_agent_loop=grpo_ext_…``.

The trainer gets the steps as `wire.Field.STEPS`. ``rm_scores`` and ``reward_extra_info``, by which verl logs
and filters, remain those of the outcome.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any

from pydantic import PrivateAttr
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.workers.rollout.replica import TokenOutput

from grpo_verl_ext.rewards.steps import KEYS, REWARDS, StepRewardError, step_end_tokens
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, STORED_AGENT_LOOP, Options
from grpo_verl_ext.verl_plugin.features import foreign_features
from grpo_verl_ext.verl_plugin.wire import Field


class _StepRewardOutput(AgentLoopOutput):  # type: ignore[misc]  # verl ships no types
    """A response that turns step rewards into token positions once verl has scored it."""

    _tokenizer: Any = PrivateAttr()

    @classmethod
    def of(cls, output: AgentLoopOutput, tokenizer: Any) -> "_StepRewardOutput":
        """Return the same response with a tokenizer; which fields were set stays, for ``as_dict`` asks."""
        made: _StepRewardOutput = cls.model_construct(_fields_set={*output.model_fields_set}, **dict(output))
        made._tokenizer = tokenizer
        return made

    def as_dict(self) -> dict[str, Any]:
        """Return verl's fields of the response, with its steps among the extra fields."""
        fields: dict[str, Any] = super().as_dict()
        extra = dict(fields["extra_fields"])
        reported = extra.get("reward_extra_info") or {}
        if any(key in reported for key in KEYS):
            extra["reward_extra_info"] = {k: v for k, v in reported.items() if k not in KEYS}
            decode = partial(self._tokenizer.decode, skip_special_tokens=True)
            try:
                ends = step_end_tokens(reported, self.response_ids, decode)
                extra[Field.STEPS] = [(float(r), end) for r, end in zip(reported[REWARDS], ends, strict=True)]
            except StepRewardError as error:
                extra[Field.STEP_ERROR] = str(error)
        return fields | {"extra_fields": extra}


def _request_seed(
    seed: int, *, step: int, index: object, session: int, turn: int, prompt_ids: Sequence[int]
) -> int:
    """Return 63 bits of a hash of the arguments; vLLM takes 64 with a sign, and -1 for no seed.

    Trainings of equal ``seed`` so draw the same random numbers for the same prompt, step and session,
    whatever their algorithms. ``step`` is ``global_steps`` of the rollout, of a validation that of the step
    before it; ``index`` is ``extra_info.index``, 0 for all where the data set has none; ``turn`` counts the
    requests for a response. The tokens of the first turn tell apart prompts of one index, and so validation
    and training, which verl does not tell an agent loop.
    """
    parts = [seed, int(step), str(index), int(session), turn, [int(token) for token in prompt_ids]]
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:8], "big") >> 1


@dataclass
class _SeededServer:
    """verl's client of the servers, for the requests of one response, with a seed in each.

    A prompt that occurs twice in a step, as in a batch over the end of an epoch, gets equal seeds: verl's
    ``uid``, which would tell the two apart, differs from run to run.
    """

    server: Any
    seed: int
    row: Mapping[str, Any]  # the fields that verl passes to an agent loop
    turn: int = 0
    prompt_ids: Sequence[int] = ()  # of the first turn

    async def generate(
        self, *args: Any, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        """Generate as the client does; ``sampling_params``, which responses share, is copied."""
        if self.turn == 0:
            self.prompt_ids = prompt_ids
        turn, self.turn = self.turn, self.turn + 1
        seed = _request_seed(
            self.seed,
            step=self.row["global_steps"],
            index=self.row["index"],
            session=self.row["session_id"],
            turn=turn,
            prompt_ids=self.prompt_ids,
        )
        return await self.server.generate(
            *args, prompt_ids=prompt_ids, sampling_params={**sampling_params, "seed": seed}, **kwargs
        )


class _ExtendedLoopMixin(AgentLoopBase):  # type: ignore[misc]
    """The additions to an agent loop of verl, mixed in before its class; verl makes one per response."""

    async def run(self, *args: Any, **kwargs: Any) -> _StepRewardOutput:
        """Generate as verl does, from seeded requests if the training asks for them."""
        seed = Options.from_config(self.config.algorithm).seed_requests
        if seed is not None:
            self.server_manager: Any = _SeededServer(self.server_manager, seed, kwargs)
        return _StepRewardOutput.of(await super().run(*args, **kwargs), self.tokenizer)


@register(AGENT_LOOPS["single_turn_agent"])
class _ExtendedSingleTurnAgentLoop(_ExtendedLoopMixin, SingleTurnAgentLoop):  # type: ignore[misc]
    """verl's ``single_turn_agent`` with the additions."""


@register(AGENT_LOOPS["tool_agent"])
class _ExtendedToolAgentLoop(_ExtendedLoopMixin, ToolAgentLoop):  # type: ignore[misc]
    """verl's ``tool_agent`` with the additions; positions of steps also count the tokens of tools."""


@dataclass(frozen=True)
class _StoredServer:
    """Answers an agent loop's request with a stored response."""

    response: Mapping[str, Any]
    version: int  # of the weights, from which verl computes the staleness of a response

    async def generate(self, *, sampling_params: Mapping[str, Any], **_: object) -> TokenOutput:
        """Return the response, with recorded log-probs if the rollout is to have log-probs."""
        response = self.response
        recorded = response["log_probs"] if sampling_params.get("logprobs") else None
        return TokenOutput(
            token_ids=response["token_ids"].tolist(),
            log_probs=None if recorded is None else recorded.tolist(),
            extra_fields={
                Field.STORED_ORIGIN: {"step": response["step"], "log_probs": response["log_probs"]},
                "min_global_steps": self.version,
                "max_global_steps": self.version,
            },
        )


@register(STORED_AGENT_LOOP)
class _StoredSingleTurnAgentLoop(_ExtendedSingleTurnAgentLoop):
    """verl's ``single_turn_agent`` with stored responses in the place of the first samples of a prompt.

    The trainer puts the responses into the prompt's row (`Field.STORED_RESPONSES`), and asks for this loop
    for training prompts alone. Session i answers with the i-th response, and asks the server where there is
    none. All else is verl's: prompt tokens, reward, and the log-probs that the actor computes afterwards.
    """

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> _StepRewardOutput:
        """Generate as verl does, with the stored response of this session in the server's place."""
        column, session = kwargs.get(Field.STORED_RESPONSES), int(kwargs["session_id"])
        stored = column["responses"] if column else []
        if session < len(stored) and stored[session] is not None:
            # verl writes this column to the queue with each of the prompt's rows: without what is taken out.
            response, stored[session] = stored[session], None
            version = int(response["step"] or kwargs["global_steps"]) - 1
            self.server_manager = _StoredServer(response, version)
        return await super().run(sampling_params, **kwargs)


for _module in chain.from_iterable(each.agent_loops.values() for each in foreign_features()):
    import_module(_module)
