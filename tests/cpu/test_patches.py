"""Test each patch of a foreign module, with a message for when it is obsolete.

A test fails once verl, torch or vLLM no longer needs the patch: then remove the patch.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed
from processes import Python
from wrapt import wrap_object

from grpo_verl_ext.verl_plugin.cpu import patches

VERL = Path(str(find_spec("verl").origin)).parent
FSDP, ROLLOUT = "workers/engine/fsdp/transformer_impl.py", "workers/rollout/vllm_rollout"
SOCKET = 'f"ipc:///tmp/rl-colocate-zmq-{job_id}-replica-{'
STILL = [
    ("cpu/patches.py", "utils/distributed.py", 'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"'),
    ("cpu/patches.py", "utils/model.py", 'attn_implementation="flash_attention_2"'),
    ("cpu/patches.py", "trainer/ppo/v1/replay_buffer.py", "poll_interval: float = 2.0"),
    ("cpu/patches.py", f"{ROLLOUT}/vllm_rollout.py", SOCKET),
    ("cpu/patches.py", f"{ROLLOUT}/utils.py", SOCKET),
    ("patches/__init__.py", "trainer/ppo/v1/replay_buffer.py", "float(np.std(values)) == 0.0"),
    ("cpu/engines.py", FSDP, 'device=["cuda", "npu"]'),
    ("cpu/engines.py", FSDP, "offload_policy = CPUOffloadPolicy(pin_memory=True)"),
]
NOT_YET = [
    ("cpu/patches.py", "trainer/ppo/v1/trainer_base.py", "poll_interval"),
    ("patches/watchdog.py", f"{ROLLOUT}/vllm_async_server.py", "errored"),
    ("patches/watchdog.py", "trainer/ppo/v1/replay_buffer.py", "ActorDiedError"),
    ("patches/watchdog.py", "trainer/ppo/v1/trainer_base.py", "ActorDiedError"),
]


@pytest.mark.parametrize(
    ("ours", "file", "words", "there"),
    [*((*each, True) for each in STILL), *((*each, False) for each in NOT_YET)],
)
def test_verl_still_needs_it(ours: str, file: str, words: str, there: bool) -> None:
    source = (VERL / file).read_text()
    assert (words in source) is there, f"is grpo_verl_ext/verl_plugin/{ours} still needed?"


class TestProcessGroup:
    def test_torch_still_refuses_verls_backend_string(self) -> None:
        from torch.distributed.distributed_c10d import BackendConfig

        with pytest.raises(ValueError, match=r"[Dd]uplicate"):
            BackendConfig(torch.distributed.Backend("cpu:gloo,cpu:gloo"))

    def test_the_patched_function_forms_a_gloo_group_and_verl_gets_our_engines(self, python: Python) -> None:
        found = python(
            """
            import torch, verl
            from verl.workers.engine_workers import initialize_global_process_group_ray
            from verl.workers.engine import EngineRegistry
            initialize_global_process_group_ray(timeout_second=None)
            total = torch.ones(1)
            torch.distributed.all_reduce(total)
            print(torch.distributed.get_backend(), total.item())
            for kind in ("language_model", "value_model"):
                print(EngineRegistry.get_engine_cls(kind, "fsdp2").__module__)
            """,
            RANK="0",
            WORLD_SIZE="1",
            DIST_INIT_METHOD=f"file:///tmp/grpo_verl_ext_group_{os.getpid()}",
            VERL_PLATFORM="cpu",
        )
        engines = ["grpo_verl_ext.verl_plugin.cpu.engines"] * 2
        assert found.stdout.split() == ["gloo", "1.0", *engines], found.stderr


def test_a_forward_only_module_is_built_as_a_trained_one_and_the_flag_is_restored() -> None:
    # The module registers verl's engines for the processor; the registry takes them once.
    from grpo_verl_ext.verl_plugin.cpu.engines import _NoPinnedOffload

    class Base:
        def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
            seen.append(self.engine_config.forward_only)
            if module is None:
                raise RuntimeError("building failed")
            return module

    class Engine(_NoPinnedOffload, Base):
        engine_config = SimpleNamespace(forward_only=True)

    seen: list[bool] = []
    engine, module = Engine(), torch.nn.Linear(1, 1)
    assert engine._build_fsdp_module(module) is module
    assert (seen, engine.engine_config.forward_only) == ([False], True)
    with pytest.raises(RuntimeError, match="building failed"):
        engine._build_fsdp_module(None)
    assert engine.engine_config.forward_only is True


def test_the_value_model_has_the_configured_attention(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = SimpleNamespace(load_valuehead_model=None)
    wrap_object(model, *patches.CPU_PATCHES["verl.utils.model"])
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = Qwen2Config(vocab_size=16, num_attention_heads=2, num_key_value_heads=1, num_labels=1, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    config._attn_implementation = "eager"
    loaded = model.load_valuehead_model(str(tmp_path), torch.float32, config, False)
    assert loaded.config._attn_implementation == "eager"
    assert loaded(torch.zeros(1, 3, dtype=torch.long)).logits.shape == (1, 3, 1)


def test_the_interval_of_polling_is_ours_unless_it_is_given() -> None:
    class Buffer:
        def __init__(self, mode: str, poll_interval: float = 2.0) -> None:
            self.arguments = (mode, poll_interval)

    replay_buffer = SimpleNamespace(ReplayBuffer=Buffer)
    wrap_object(replay_buffer, *patches.CPU_PATCHES["verl.trainer.ppo.v1.replay_buffer"])
    assert Buffer("sync").arguments == ("sync", 0.2)
    assert Buffer("sync", poll_interval=5.0).arguments == ("sync", 5.0)


def test_vllms_worker_keeps_its_weights_and_two_rays_have_two_sockets(python: Python) -> None:
    """Unpatched vLLM packs a layer's weights and drops them; both ends of a socket have one name."""
    found = python(
        """
        import os
        from types import SimpleNamespace
        import verl
        from wrapt import wrap_object
        from vllm.platforms import current_platform
        import torch
        from vllm import _custom_ops
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
        from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
        from grpo_verl_ext.verl_plugin.cpu.patches import CPU_PATCHES

        def left():
            layer = torch.nn.Linear(4, 3, bias=False)
            dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
            return layer.weight.numel()

        print("found", left())
        from grpo_verl_ext.verl_plugin.cpu.rollout import CpuWorkerExtension
        print(left())

        verls = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
        vLLMColocateWorkerExtension._get_zmq_handle = lambda self: verls

        class Adapter:
            def __init__(self):
                self.zmq_handle = verls

        patch = CPU_PATCHES["verl.workers.rollout.vllm_rollout.vllm_rollout"]
        wrap_object(SimpleNamespace(ServerAdapter=Adapter), *patch)
        for raylet in ("29336", "30092"):
            os.environ["RAY_RAYLET_PID"] = raylet
            print(Adapter().zmq_handle, object.__new__(CpuWorkerExtension)._get_zmq_handle())
        """,
        VERL_PLATFORM="cpu",
    )
    name = "ipc:///tmp/rl-colocate-zmq-{}-01000000-replica-0-rank-0.sock"
    sender_and_receiver = [name.format(raylet) for raylet in (29336, 29336, 30092, 30092)]
    assert found.stdout.rpartition("found ")[2].split() == ["0", "12", *sender_and_receiver], found.stderr
