"""vLLM's worker on a CPU, with weights that can be loaded again after each update.

They arrive through a socket of this Ray alone; `patches.CPU_PATCHES` names the sender's end.

Patch of ``vllm._custom_ops._supports_onednn``: vLLM packs the weights of its linear layers for oneDNN
when a model is loaded and drops the originals, so the second load (verl's first weight update) fails
with ``'Parameter' object has no attribute 'weight_loader'``. With the flag off, vLLM takes its plain
``torch.nn.functional.linear`` branch, which leaves the weights as they are. vLLM has no setting for this.
"""

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm import _custom_ops

from grpo_verl_ext.verl_plugin.cpu.patches import socket_of_this_ray

_custom_ops._supports_onednn = False  # in the process of a worker, which alone imports this


class CpuWorkerExtension(vLLMColocateWorkerExtension):  # type: ignore[misc]  # verl ships no types
    """verl's worker extension; named by ``rollout.engine_kwargs.vllm.worker_extension_cls``."""

    def _get_zmq_handle(self) -> str:
        return socket_of_this_ray(super()._get_zmq_handle())
