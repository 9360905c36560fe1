"""The hook that Ray calls in each process of a training on the processor, before it imports verl."""

import gc

from ray._common.utils import load_class

from grpo_verl_ext.verl_plugin.composed import composed


def test_the_preset_names_what_ray_can_call_and_cycles_are_still_found() -> None:
    name = composed(["+platform=cpu"]).ray_kwargs.ray_init.runtime_env.worker_process_setup_hook
    before = gc.get_threshold()
    try:
        load_class(name)()
        assert gc.get_threshold() == (100_000, 10, 10)
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)


def test_without_the_preset_there_is_no_hook() -> None:
    runtime_env = composed(["+algo=gvpo"]).ray_kwargs.ray_init.get("runtime_env") or {}
    assert "worker_process_setup_hook" not in runtime_env
