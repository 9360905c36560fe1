"""verl's agent loops with step rewards and seeds: ``rollout.agent.default_agent_loop=grpo_ext_…``.

With ``algorithm.grpo_ext.seed_requests`` each request has a seed (`request_seeds`). The trainer gets the
steps as `wire.Field.STEPS`.
``rm_scores`` and ``reward_extra_info``, by which verl logs and filters, remain those of the outcome.
"""

from functools import partial
from typing import Any

from pydantic import PrivateAttr
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

from grpo_verl_ext.rewards.steps import KEYS, REWARDS, StepRewardError, step_end_tokens
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, Options
from grpo_verl_ext.verl_plugin.measure.request_seeds import SeededServer
from grpo_verl_ext.verl_plugin.wire import Field

SINGLE_TURN, MULTI_TURN = AGENT_LOOPS["single_turn_agent"], AGENT_LOOPS["tool_agent"]


class StepRewardOutput(AgentLoopOutput):  # type: ignore[misc]  # verl ships no types
    """A response that turns step rewards into token positions once verl has scored it."""

    _tokenizer: Any = PrivateAttr()

    @classmethod
    def of(cls, output: AgentLoopOutput, tokenizer: Any) -> "StepRewardOutput":
        """Return the same response with a tokenizer; which fields were set stays, for ``as_dict`` asks."""
        made: StepRewardOutput = cls.model_construct(_fields_set={*output.model_fields_set}, **dict(output))
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


class _ExtendedLoopMixin(AgentLoopBase):  # type: ignore[misc]
    """The additions to an agent loop of verl, mixed in before its class; verl makes one per response."""

    async def run(self, *args: Any, **kwargs: Any) -> StepRewardOutput:
        """Generate as verl does, from seeded requests if the training asks for them."""
        seed = Options.of_training(self.config.algorithm).seed_requests
        if seed is not None:
            self.server_manager: Any = SeededServer(self.server_manager, seed, kwargs)
        return StepRewardOutput.of(await super().run(*args, **kwargs), self.tokenizer)


@register(SINGLE_TURN)
class ExtendedSingleTurnAgentLoop(_ExtendedLoopMixin, SingleTurnAgentLoop):  # type: ignore[misc]
    """verl's ``single_turn_agent`` with the additions."""


@register(MULTI_TURN)
class ExtendedToolAgentLoop(_ExtendedLoopMixin, ToolAgentLoop):  # type: ignore[misc]
    """verl's ``tool_agent`` with the additions; positions of steps also count the tokens of tools."""
