"""verl's agent-loop worker, which asks a teacher's server for one number a response: log π_T(y).

verl's worker calls the teacher for each training response as soon as it is scored, stored responses included.
A failure is reported to the trainer (`wire.report_failure`), as verl would go on without the response.
"""

import asyncio
import copy
import logging
import math
from collections.abc import Coroutine, Iterable
from typing import Any

import ray
import torch
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils import hf_tokenizer
from verl.utils.fs import copy_to_local

from grpo_verl_ext.utils.end_tokens import end_tokens
from grpo_verl_ext.utils.keys import SECTION
from grpo_verl_ext.verl_plugin.wire import report_failure
from gvpo_teacher.options import SCORE, TeacherError, options_of
from gvpo_teacher.text import TeacherTokens, TextReader

logger = logging.getLogger(__name__)


_VerlsWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class
"""The class that ``ray.remote`` made an actor of."""


class TeacherAgentLoopWorker(_VerlsWorker):  # type: ignore[misc]  # verl ships no types
    """verl's worker with the log-prob of each response under its teacher as `SCORE`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._options = options_of(self.config.algorithm)
        self._answered: dict[str, float] = {}
        """Teacher → when it last answered, on the clock of the event loop."""
        self._readers: dict[str, TextReader] = {}
        if self._options.reads == "text":
            teachers = self.teacher_server_manager.teacher_model_configs
            self._readers = {key: self._reader(each.model_path) for key, each in teachers.items()}

    def _reader(self, path: str) -> TextReader:
        return TextReader(
            # verl's threads use theirs, and how a text is split is a state of a tokenizer.
            copy.deepcopy(self.tokenizer),
            hf_tokenizer(name_or_path=copy_to_local(src=path)),
            end_tokens(self.tokenizer, self.model_config.generation_config),
            name=path,
            template=self.config.data.get("apply_chat_template_kwargs") or {},
            longest_prompt=self.rollout_config.prompt_length,
        )

    async def _compute_teacher_logprobs(
        self,
        output: Any,
        prompt_ids: list[int],
        response_ids: list[int],
        validate: bool,
        sample_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if validate:
            return
        try:
            score = await self._scored(output, list(prompt_ids), list(response_ids), sample_kwargs or {})
        except TeacherError as error:
            report_failure(error)
            raise
        except Exception as error:
            named = _unexpected(error, self.teacher_server_manager.teacher_model_configs.values())
            report_failure(named)
            raise named from error
        output.extra_fields[SCORE] = score

    async def _scored(
        self, output: Any, prompt_ids: list[int], response_ids: list[int], row: dict[str, Any]
    ) -> float | None:
        """Return the log-prob of a response under its teacher; None where it has none.

        Raises:
            TeacherError: see `_score`, or there is more than text and the teacher reads text.
        """
        routing: Any = row.get(self.teacher_key)
        key = self.teacher_server_manager._resolve_teacher_key(
            routing.item() if hasattr(routing, "item") else routing
        )
        if not self._readers:
            return await self._score(
                key, TeacherTokens(prompt_ids, response_ids), output.response_mask, output
            )
        if output.multi_modal_data:
            raise TeacherError(
                f"a prompt has {', '.join(output.multi_modal_data)}, which a teacher that reads text does "
                f"not see. Type: {SECTION}.teacher.reads=tokens"
            )
        tokens = self._readers[key].tokens(list(row["raw_prompt"]), prompt_ids, response_ids)
        if tokens is None:
            return None
        return await self._score(key, tokens, [1] * len(tokens.response), output)

    async def _score(self, key: str, tokens: TeacherTokens, mask: list[int], output: Any) -> float:
        """Return the sum of the log-probs of the response's tokens under its mask.

        Raises:
            TeacherError: no answer within the limits, a context that is too short, or no finite number.
        """
        model = self.teacher_server_manager.teacher_model_configs[key]
        _check_context(model, tokens)
        _, log_probs = await self._answer(key, model.model_path, tokens.prompt + tokens.response, output)
        # The value at position t is of token t + 1.
        own = log_probs.double().squeeze(-1)[len(tokens.prompt) - 1 : -1]
        score = float(own[torch.tensor(mask, dtype=torch.bool)].sum())
        if not math.isfinite(score):
            raise TeacherError(
                f"the teacher {model.model_path} gave a response of {len(own)} tokens the log-prob {score}"
            )
        return score

    async def _answer(self, key: str, path: str, sequence: list[int], output: Any) -> Any:
        why = advice = ""
        for attempt in range(self._options.retries + 1):
            request = self.teacher_server_manager.compute_teacher_logprobs_single(
                sequence,
                multi_modal_data=output.multi_modal_data,
                mm_processor_kwargs=output.mm_processor_kwargs,
                mm_processor_output=getattr(output, "mm_processor_output", None),
                routing_key=key,
            )
            try:
                return await self._within_limit(key, request)
            except asyncio.TimeoutError:
                why = f"took more than {self._options.timeout:g} seconds, in which it answered nothing else"
                advice = f"; for a slow teacher type: ++{SECTION}.teacher.timeout=<seconds>"
            except ray.exceptions.RayError as error:
                last_line = str(error).strip().rpartition("\n")[2].rstrip(".")
                why, advice = f"failed with {type(error).__name__}: {last_line}", ""
            logger.warning("attempt %d at the teacher %s %s", attempt + 1, path, why)
        raise TeacherError(
            f"the teacher {path} gave no log-probs in {self._options.retries + 1} attempts, of which the "
            f"last {why}. Start the same training again, which resumes from its last checkpoint{advice}"
        )

    async def _within_limit(self, key: str, request: Coroutine[Any, Any, Any]) -> Any:
        """Return a teacher's answer, for which a request may wait while the teacher answers others.

        Raises:
            asyncio.TimeoutError: it has answered nothing for the seconds of ``teacher.timeout``.
        """
        clock = asyncio.get_running_loop().time
        asked, task = clock(), asyncio.ensure_future(request)
        try:
            while not task.done():
                left = max(asked, self._answered.get(key, asked)) + self._options.timeout - clock()
                if left <= 0:
                    raise asyncio.TimeoutError
                await asyncio.wait([task], timeout=left)
            self._answered[key] = clock()
            return task.result()
        finally:
            task.cancel()


class TeacherAgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """verl's manager with `TeacherAgentLoopWorker`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(TeacherAgentLoopWorker)


def _check_context(model: Any, tokens: TeacherTokens) -> None:
    longest, needed = model.inference.max_model_len, len(tokens.prompt) + len(tokens.response) + 1
    if longest is not None and needed > longest:
        key = "distillation.teacher_models.<name>.inference.max_model_len"
        raise TeacherError(
            f"{key} is {longest} for the teacher {model.model_path}, but a prompt of {len(tokens.prompt)} of "
            f"its tokens with a response of {len(tokens.response)} needs {needed}. Type: {key}={needed}"
        )


def _unexpected(error: Exception, models: Iterable[Any]) -> TeacherError:
    names = ", ".join(model.model_path for model in models)
    return TeacherError(
        f"a response could not be given to the teacher {names}: {type(error).__name__}: {error}"
    )
