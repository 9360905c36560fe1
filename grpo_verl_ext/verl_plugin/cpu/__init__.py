"""Run verl on a machine without an accelerator, with real FSDP2, vLLM and Ray, all in float32."""

import importlib

from wrapt import register_post_import_hook


def install() -> None:
    """Register the CPU platform, and patch verl's modules for it as they are imported; safe to call twice."""
    from grpo_verl_ext.verl_plugin.cpu import distribution, platform, polling, process_group, value_model

    platform.register()
    distribution.install()
    register_post_import_hook(process_group.patch, "verl.utils.distributed")
    register_post_import_hook(value_model.patch, "verl.utils.model")
    register_post_import_hook(polling.patch, "verl.trainer.ppo.v1.replay_buffer")
    register_post_import_hook(_register_engines, "verl.workers.engine.fsdp.transformer_impl")


def _register_engines(transformer_impl: object) -> None:  # noqa: ARG001  # the hook's signature
    importlib.import_module("grpo_verl_ext.verl_plugin.cpu.engines")
