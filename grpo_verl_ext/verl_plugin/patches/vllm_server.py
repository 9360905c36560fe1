"""Stop verl's vLLM server when its engine process has died; verl would wait forever.

Patch of ``vLLMHttpServer.run_server``. vLLM's own server ends with its engine. verl's server continues, fails
every request, and the next update of the weights waits forever for the dead engine. The end of the server, an
actor, is noticed by Ray, by verl and by the patch `lost_parts`. verl has no hook there.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from typing import Any

SECONDS = 5.0
"""Between two looks at the engine."""


def patch(vllm_async_server: Any) -> None:
    """Start to watch the engine as soon as the server has one."""
    original = vllm_async_server.vLLMHttpServer.run_server

    @functools.wraps(original)
    async def run_server(self: Any, *args: Any, **kwargs: Any) -> None:
        await original(self, *args, **kwargs)
        engine = getattr(self, "engine", None)
        if hasattr(engine, "errored"):
            self.grpo_ext_watch = asyncio.create_task(_end_with(engine))
        else:
            print(
                "grpo_verl_ext: warning: this version of verl or vLLM does not say whether its engine is "
                "alive, so a training whose vLLM engine dies waits forever",
                file=sys.stderr,
                flush=True,
            )

    vllm_async_server.vLLMHttpServer.run_server = run_server


async def _end_with(engine: Any) -> None:
    while not engine.errored:
        await asyncio.sleep(SECONDS)
    print(
        "grpo_verl_ext: the EngineCore of this vLLM server died; the server ends with it",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
