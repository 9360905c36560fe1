"""Stop a training when a Ray actor or vLLM engine has died, or a reward function failed.

**Actors.** Patch of ``PPOTrainer.fit``, where verl has no hook. verl does not restart actors, and where their
answer would come through TransferQueue, as the responses of an agent loop's worker do, it waits forever.
While ``fit`` runs, a thread asks Ray which of the training's actors have died. If verl has not raised by
itself `_VERL_SECONDS` later, ``fit`` raises `LostActorError`. What a process has reported
(`wire.report_failure`) is raised likewise: verl would train on the other responses.

**Rewards.** Patch of ``RewardLoopWorker.compute_score``, where verl has no hook. verl logs what a reward
function raises, and trains on the other responses; likewise with one that returns a number of numpy.

**Engines.** Patch of ``vLLMHttpServer.run_server``, where verl has no hook. Other than vLLM's own, verl's
server survives its engine, fails every request, and the next update of the weights waits forever. The end of
the server, an actor, is noticed as above.
"""

import asyncio
import functools
import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from grpo_verl_ext.rewards.functions import checked_result
from grpo_verl_ext.utils.console import say
from grpo_verl_ext.utils.keys import written
from grpo_verl_ext.verl_plugin import wire

_LOOK_SECONDS = 5.0
"""Between two questions to Ray, and between two looks of a server at its engine."""
_VERL_SECONDS = 30.0
"""Seconds for verl to raise its own error, which says more, and to end."""

_WATCHED_ACTORS = re.compile(
    r"(agent_loop_worker_|reward_loop_worker_|vllm_server_|sglang_server_|trtllm_server_|TransferQueue)"
    r"|.*WorkerDict_\d+:\d+$"
)
"""Matches the names of verl's actors; the death of a user's own actors is ignored."""


class LostActorError(RuntimeError):
    """A Ray actor that the training depends on has died, and verl would wait for it."""


def patch_trainer(trainer_base: Any) -> None:
    """Watch the training's actors while ``fit`` runs, and say where a filter keeps no group."""
    trainer = trainer_base.PPOTrainer
    trainer.fit, refill = watched()(trainer.fit), trainer._add_prompts_to_generate

    @functools.wraps(refill)
    def counted(self: Any, num_prompts: int) -> Any:
        step, before = getattr(self, "grpo_ext_refilled", (None, 0))
        refilled = num_prompts + before * (step == self.global_steps)
        self.grpo_ext_refilled = (self.global_steps, refilled)
        key, groups = "algorithm.filter_groups.metric", self.config.algorithm.get("filter_groups")
        many = 10 * self.config.data.train_batch_size  # batches beside the step's own
        if groups and groups.enable and refilled - num_prompts < many <= refilled:
            say(
                f"warning: step {self.global_steps} has drawn {refilled} prompts in place of those whose "
                f"responses are equal in {key}={groups.metric}, and keeps drawing. Type: {key}=<another>"
            )
        return refill(self, num_prompts)

    trainer._add_prompts_to_generate = counted


@contextmanager
def watched() -> Iterator[None]:
    """Raise `LostActorError` inside the block if an actor of this job dies during it.

    Actors that died before the block belong to another training. The main thread is interrupted by a signal
    whose handler raises KeyboardInterrupt, the only exception that ``ray.get`` lets through.
    What was reported is raised likewise, and where verl first ends with an error that follows from it.
    """
    done, sending = threading.Event(), threading.Lock()
    found: list[RuntimeError] = []

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if not done.is_set():
            raise KeyboardInterrupt

    try:
        earlier = set(_lost_actors())
        wire.report_failure(None)
        handler = signal.signal(signal.SIGUSR1, interrupt)
    except Exception as error:  # noqa: BLE001  # a training must not end because it cannot be watched
        _warn_unwatched(error)
        yield
        return
    name = "grpo_verl_ext lost actors"
    threading.Thread(target=_look, args=(earlier, done, sending, found), name=name, daemon=True).start()
    try:
        try:
            yield
        finally:
            done.set()
    except KeyboardInterrupt:
        if not found:
            raise
        raise found[0] from None
    except Exception as error:
        if (failed := wire.reported_failure()) is not None:
            raise failed from error
        raise
    else:
        if (failed := wire.reported_failure()) is not None:
            raise failed
    finally:
        with sending:  # without its handler the signal would end the process
            signal.signal(signal.SIGUSR1, handler)


def _look(
    earlier: set[str], done: threading.Event, sending: threading.Lock, found: list[RuntimeError]
) -> None:
    deadline = math.inf
    while not done.wait(_LOOK_SECONDS):
        try:
            failed = wire.reported_failure()
            lost = [words for actor, words in _lost_actors().items() if actor not in earlier]
        except Exception as error:  # noqa: BLE001  # as above
            _warn_unwatched(error)
            return
        if lost:
            deadline = min(deadline, time.monotonic() + _VERL_SECONDS)
        if failed is None and time.monotonic() < deadline:
            continue
        with sending:
            if not done.is_set():
                said = (
                    f"{'; '.join(lost)} verl does not start it again and would wait for it; the training "
                    f"ends here. Type the same command again: it goes on from the last checkpoint"
                )
                found.append(LostActorError(said) if failed is None else failed)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return


def _warn_unwatched(error: Exception) -> None:
    say(
        f"warning: the actors of this training are not watched ({type(error).__name__}: {error}); one that "
        "waits for a dead actor waits forever"
    )


def _lost_actors() -> dict[str, str]:
    """Return this job's actors, by id, that died other than by `ray.kill` or the loss of all references."""
    import ray
    from ray._private import state  # ray.util.state asks the dashboard, which may be off

    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    lost: dict[str, str] = {}
    for actor_id, actor in state.actors(job_id=job, actor_state_name="DEAD").items():
        cause = actor["DeathCause"].actor_died_error_context
        if _WATCHED_ACTORS.match(actor["Name"]) and cause.reason in (cause.WORKER_DIED, cause.NODE_DIED):
            lost[actor_id] = (
                f"{actor['Name']} ({actor['ActorClassName']}, process {actor['Pid']} on "
                f"{actor['Address']['IPAddress']}) died: {cause.error_message}"
            )
    return lost


def patch_reward_worker(reward_loop: Any) -> None:
    """Make numbers of what a reward function returns, and report what it raises."""
    original = reward_loop.RewardLoopWorker.compute_score

    @functools.wraps(original)
    async def compute_score(self: Any, data: Any) -> dict[str, Any]:
        reward = self.config.reward
        function = reward.custom_reward_function.path or reward.reward_manager.name
        try:
            return checked_result(await original(self, data), function)
        except Exception as error:
            of_server = (ConnectionError, TimeoutError, reward_loop.aiohttp.ClientError)
            is_servers = reward.reward_model.enable and isinstance(error, of_server)
            if not is_servers and written(self.config.algorithm).get("lost_responses") is None:
                kind = type(error).__name__
                wire.report_failure(RuntimeError(f"the reward function {function} raised {kind}: {error}"))
            raise

    reward_loop.RewardLoopWorker.compute_score = compute_score


def patch_vllm_server(vllm_async_server: Any) -> None:
    """Start to watch the engine as soon as the server has one."""
    original = vllm_async_server.vLLMHttpServer.run_server

    @functools.wraps(original)
    async def run_server(self: Any, *args: Any, **kwargs: Any) -> None:
        await original(self, *args, **kwargs)
        engine = getattr(self, "engine", None)
        if hasattr(engine, "errored"):
            self.grpo_ext_watch = asyncio.create_task(_end_with(engine))
        else:
            say(
                "warning: this version of verl or vLLM does not say whether its engine is alive, so a "
                "training whose vLLM engine dies waits forever"
            )

    vllm_async_server.vLLMHttpServer.run_server = run_server


async def _end_with(engine: Any) -> None:
    while not engine.errored:
        await asyncio.sleep(_LOOK_SECONDS)
    say("the EngineCore of this vLLM server died; the server ends with it")
    os._exit(1)
