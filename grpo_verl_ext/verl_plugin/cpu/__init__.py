"""Run verl on a machine without an accelerator, with real FSDP2, vLLM and Ray, all in float32."""

import importlib

from wrapt import register_post_import_hook


def install_platform() -> None:
    """Register the CPU platform, and patch verl's modules for it as they are imported; safe to call twice."""
    from grpo_verl_ext.verl_plugin.cpu import patches, platform

    platform.register_platform()
    patches.install_vllm_alias()
    register_post_import_hook(patches.patch_process_group, "verl.utils.distributed")
    register_post_import_hook(patches.patch_value_model, "verl.utils.model")
    register_post_import_hook(patches.patch_polling, "verl.trainer.ppo.v1.replay_buffer")
    register_post_import_hook(patches.patch_weight_socket, "verl.workers.rollout.vllm_rollout.vllm_rollout")
    register_post_import_hook(_register_engines, "verl.workers.engine.fsdp.transformer_impl")


def _register_engines(transformer_impl: object) -> None:  # noqa: ARG001  # the hook's signature
    importlib.import_module("grpo_verl_ext.verl_plugin.cpu.engines")
