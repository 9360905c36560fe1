"""Changes to verl and to transformers' loading that the CPU platform needs.

`cpu.install_platform` registers them.
"""

import functools
import os
from collections.abc import Mapping
from typing import Any

import torch
from wrapt import FunctionWrapper


def _load_valuehead_model(
    local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool
) -> Any:
    """Load verl's critic with the configured attention, which runs on a CPU."""
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        torch_dtype=torch_dtype,
        config=model_config,
        attn_implementation=model_config._attn_implementation,
        trust_remote_code=trust_remote_code,
    )


def socket_of_this_ray(handle: str) -> str:
    """Return verl's name of the socket with the process id of the raylet, which Ray gives to its workers."""
    return handle.replace("-zmq-", f"-zmq-{os.environ['RAY_RAYLET_PID']}-", 1)


def _init_adapter(original: Any, adapter: Any, args: Any, kwargs: Any) -> None:
    original(*args, **kwargs)
    adapter.zmq_handle = socket_of_this_ray(adapter.zmq_handle)


CPU_PATCHES: Mapping[str, tuple[str, Any]] = {
    # verl builds the backend string ``cpu:gloo,<device>:<backend>``, which torch refuses for the device
    # ``cpu`` (duplicate device type). Its workers call this without a backend, so no setting could change it.
    # It is replaced before other modules bind the name.
    "verl.utils.distributed": (
        "initialize_global_process_group_ray",
        lambda original: functools.partial(original, backend="gloo"),
    ),
    # verl loads the value model with ``attn_implementation="flash_attention_2"``, ignoring the configuration,
    # and transformers refuses that where the flash-attn package is missing. verl looks this up at each call.
    "verl.utils.model": ("load_valuehead_model", lambda _: _load_valuehead_model),
    # verl looks for finished rollouts every 2 s, and has no setting for it; a step of a small model takes
    # about 5 s. A user's own sampler that gives an interval keeps it.
    "verl.trainer.ppo.v1.replay_buffer": (
        "ReplayBuffer.__init__",
        lambda original: functools.partialmethod(original, poll_interval=0.2),
    ),
    # verl names the socket of the weights in ``/tmp`` by Ray's job, and each training that starts a Ray of
    # its own is job 1 of it. Two of them on one machine then wait for each other for ever, or load each
    # other's weights. `rollout.CpuWorkerExtension` names the receiver's end. verl has no setting for it.
    "verl.workers.rollout.vllm_rollout.vllm_rollout": (
        "ServerAdapter.__init__",
        lambda original: FunctionWrapper(original, _init_adapter),
    ),
}
"""Module of verl → a name in it, and what takes its place when it is imported; no setting could do it."""
