"""Test each patch of a foreign module, with a message for when it is obsolete.

A test fails once verl, torch or vLLM no longer needs the patch: then remove the patch.
"""

import inspect
import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed
from processes import Python

from grpo_verl_ext.verl_plugin.cpu import patches


class TestProcessGroup:
    def test_torch_still_refuses_verls_backend_string(self) -> None:
        from torch.distributed.distributed_c10d import BackendConfig

        with pytest.raises(ValueError, match=r"[Dd]uplicate"):
            BackendConfig(torch.distributed.Backend("cpu:gloo,cpu:gloo"))

    def test_verl_still_builds_that_string(self) -> None:
        from verl.utils.distributed import initialize_global_process_group_ray

        source = inspect.getsource(inspect.unwrap(initialize_global_process_group_ray))
        assert 'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"' in source, (
            "verl builds another backend string: is grpo_verl_ext/verl_plugin/cpu/patches.py needed?"
        )

    def test_the_patched_function_forms_a_gloo_group(self, python: Python) -> None:
        found = python(
            """
            import torch, verl
            from verl.workers.engine_workers import initialize_global_process_group_ray
            initialize_global_process_group_ray(timeout_second=None)
            total = torch.ones(1)
            torch.distributed.all_reduce(total)
            print(torch.distributed.get_backend(), total.item())
            """,
            RANK="0",
            WORLD_SIZE="1",
            DIST_INIT_METHOD=f"file:///tmp/grpo_verl_ext_group_{os.getpid()}",
            VERL_PLATFORM="cpu",
        )
        assert found.stdout.split() == ["gloo", "1.0"], found.stderr


class TestEngines:
    def test_verl_gets_our_engines_for_this_device(self, python: Python) -> None:
        found = python(
            """
            from verl.workers.engine import EngineRegistry
            for kind in ("language_model", "value_model"):
                print(EngineRegistry.get_engine_cls(kind, "fsdp2").__module__)
            """,
            VERL_PLATFORM="cpu",
        )
        assert found.stdout.split() == ["grpo_verl_ext.verl_plugin.cpu.engines"] * 2, found.stderr

    def test_verl_still_has_no_engine_of_its_own_for_it(self) -> None:
        from verl.workers.engine.fsdp import transformer_impl

        source = inspect.getsource(transformer_impl)
        assert 'device=["cuda", "npu"]' in source, "verl registers other devices: are our engines needed?"

    def test_a_forward_only_module_is_still_offloaded_to_pinned_memory(self) -> None:
        from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

        source = inspect.getsource(FSDPEngine._build_fsdp_module)
        assert "CPUOffloadPolicy(pin_memory=True)" in source, "is _NoPinnedOffload._build_fsdp_module needed?"

    def test_the_module_is_built_as_a_trained_one_and_the_flag_is_restored(self) -> None:
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


class TestValueModel:
    def test_verl_still_insists_on_flash_attention(self, python: Python) -> None:
        found = python(
            """
            import inspect
            from verl.utils.model import load_valuehead_model
            print('attn_implementation="flash_attention_2"' in inspect.getsource(load_valuehead_model))
            """,
            VERL_USE_EXTERNAL_PLUGINS="none",
        )
        assert found.stdout.split()[-1] == "True", (
            f"verl loads the critic otherwise: is cpu/patches.py needed? {found.stderr}"
        )

    def test_the_configured_attention_is_used(self, tmp_path: Path) -> None:
        from transformers import Qwen2Config, Qwen2ForCausalLM

        from grpo_verl_ext.verl_plugin.cpu import patches

        model = SimpleNamespace()
        patches.patch_value_model(model)
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        config = Qwen2Config(
            vocab_size=16, num_attention_heads=2, num_key_value_heads=1, num_labels=1, **sizes
        )
        Qwen2ForCausalLM(config).save_pretrained(tmp_path)
        config._attn_implementation = "eager"
        loaded = model.load_valuehead_model(str(tmp_path), torch.float32, config, False)
        assert loaded.config._attn_implementation == "eager"
        assert loaded(torch.zeros(1, 3, dtype=torch.long)).logits.shape == (1, 3, 1)


class TestPolling:
    def test_verl_still_looks_every_two_seconds_and_has_no_key_for_it(self) -> None:
        from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
        from verl.trainer.ppo.v1.trainer_base import PPOTrainer

        init = inspect.signature(inspect.unwrap(ReplayBuffer.__init__))
        assert init.parameters["poll_interval"].default == 2.0, "is grpo_verl_ext/.../cpu/patches.py needed?"
        assert "poll_interval" not in inspect.getsource(PPOTrainer._build_replay_buffer), "verl has a key now"

    def test_the_interval_is_ours_unless_it_is_given(self) -> None:
        class Buffer:
            def __init__(self, mode: str, poll_interval: float = 2.0) -> None:
                self.arguments = (mode, poll_interval)

        patches.patch_polling(SimpleNamespace(ReplayBuffer=Buffer))
        assert Buffer("sync").arguments == ("sync", 0.2)
        assert Buffer("sync", poll_interval=5.0).arguments == ("sync", 5.0)


class TestWeightSocket:
    def test_verl_still_names_both_ends_by_the_job_of_a_ray_alone(self) -> None:
        folder = Path(str(find_spec("verl").origin)).parent / "workers" / "rollout" / "vllm_rollout"
        name = 'f"ipc:///tmp/rl-colocate-zmq-{job_id}-replica-{'
        for end in ("vllm_rollout.py", "utils.py"):
            assert name in (folder / end).read_text(), "is patch_weight_socket still needed?"

    def test_two_rays_have_two_sockets_and_both_ends_of_one_the_same(self, python: Python) -> None:
        found = python(
            """
            import os
            from types import SimpleNamespace
            import verl
            from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
            from grpo_verl_ext.verl_plugin.cpu.patches import patch_weight_socket
            from grpo_verl_ext.verl_plugin.cpu.rollout import CpuWorkerExtension

            verls = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
            vLLMColocateWorkerExtension._get_zmq_handle = lambda self: verls

            class Adapter:
                def __init__(self):
                    self.zmq_handle = verls

            patch_weight_socket(SimpleNamespace(ServerAdapter=Adapter))
            for raylet in ("29336", "30092"):
                os.environ["RAY_RAYLET_PID"] = raylet
                print(Adapter().zmq_handle, object.__new__(CpuWorkerExtension)._get_zmq_handle())
            """,
            VERL_PLATFORM="cpu",
        )
        name = "ipc:///tmp/rl-colocate-zmq-{}-01000000-replica-0-rank-0.sock"
        sender_and_receiver = [name.format(raylet) for raylet in (29336, 29336, 30092, 30092)]
        assert found.stdout.split()[-4:] == sender_and_receiver, found.stderr


class TestRolloutWorker:
    def test_vllm_still_drops_the_weights_that_it_packs(self, python: Python) -> None:
        """Unpatched vLLM on this machine: after packing, the layer's weight is empty."""
        found = python(_PACK.format(prepare=""), VERL_PLATFORM="cpu")
        assert found.stdout.split()[-1] == "0", found.stderr

    def test_with_the_patch_the_weight_stays(self, python: Python) -> None:
        found = python(_PACK.format(prepare="_custom_ops._supports_onednn = False"), VERL_PLATFORM="cpu")
        assert found.stdout.split()[-1] == "12", found.stderr

    def test_the_worker_extension_sets_the_flag(self, python: Python) -> None:
        found = python(
            """
            import verl
            from vllm import _custom_ops
            from grpo_verl_ext.verl_plugin.cpu.rollout import CpuWorkerExtension
            try:
                CpuWorkerExtension(vllm_config=None)
            finally:
                print(_custom_ops._supports_onednn)
            """,
            VERL_PLATFORM="cpu",
        )
        assert found.stdout.split()[-1] == "False", found.stderr


_PACK = """
import verl
from vllm.platforms import current_platform
import torch
from vllm import _custom_ops
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
{prepare}
layer = torch.nn.Linear(4, 3, bias=False)
dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
print(layer.weight.numel())
"""


class TestDriverCheck:
    def test_verls_main_still_validates_before_it_starts_ray(self) -> None:
        from verl.trainer import main_ppo

        source = inspect.getsource(main_ppo.main)
        assert source.index("validate_config(") < source.index("run_ppo("), (
            "verl's main changed its order: see grpo_verl_ext/driver.py"
        )


class TestLostParts:
    def test_verls_server_still_does_not_look_after_its_engine(self) -> None:
        import verl

        # Importing it asks for a distribution called vllm.
        file = Path(verl.__file__).parent / "workers/rollout/vllm_rollout/vllm_async_server.py"
        source = file.read_text()
        assert "errored" not in source, (
            "verl's vLLM server looks after its engine: is "
            "grpo_verl_ext/verl_plugin/patches/watchdog.py needed?"
        )

    def test_verls_trainer_still_does_not_look_after_its_agent_loops(self) -> None:
        from verl.trainer.ppo.v1 import replay_buffer, trainer_base

        for module in (replay_buffer, trainer_base):
            assert "ActorDiedError" not in inspect.getsource(module), (
                f"{module.__name__} looks for dead actors: is "
                "grpo_verl_ext/verl_plugin/patches/watchdog.py needed?"
            )
