"""Test sizes that ``+platform=cpu`` derives from model and budgets.

Numbers are computed by hand for SmolLM2-135M: 49,152 words, width 576, feed-forward 1536, 30 layers, 3
key-value heads of 64, a context of 8192. A token has 2 · 30 · 3 · 64 · 4 = 46,080 bytes of keys and values.
"""

import asyncio
import copy
import functools
import importlib.util
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import verl
import yaml
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import save_file
from verl.plugin.platform import platform_manager

from grpo_verl_ext.preflight import ADVICE
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.cpu import sizes
from grpo_verl_ext.verl_plugin.cpu.platform import PlatformCPU
from grpo_verl_ext.verl_plugin.model_files import model_shape

SMOLLM: dict[str, object] = {"model_type": "llama", "vocab_size": 49152, "max_position_embeddings": 8192}
SMOLLM |= {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
SMOLLM |= {"num_attention_heads": 9, "num_key_value_heads": 3}
MODEL, ACTOR, ROLLOUT = "actor_rollout_ref.model.path", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
LONGEST, CACHE = f"{ROLLOUT}.max_model_len", f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes"
BUCKET = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"

Folder = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    def made(**changes: object) -> str:
        (tmp_path / "config.json").write_text(json.dumps(SMOLLM | changes))
        return str(tmp_path)

    return made


@functools.cache
def preset() -> DictConfig:
    """Composed once, which takes a second."""
    return composed(["+algo=gvpo", "+platform=cpu"])


def on_cpu(model: str, *overrides: str, prompt: int = 64, response: int = 64) -> DictConfig:
    config = copy.deepcopy(preset())
    lengths = f"data.max_prompt_length={prompt}", f"data.max_response_length={response}"
    for override in (f"{MODEL}={model}", *lengths, *overrides):
        key, _, value = override.removeprefix("+").partition("=")
        OmegaConf.update(config, key, yaml.safe_load(value), force_add=True)
    return config


def composed_sizes(config: DictConfig) -> list[object]:
    keys = (LONGEST, CACHE, BUCKET, f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu")
    return [OmegaConf.select(config, key) for key in keys]


class TestPreset:
    """What verl gets from the command line."""

    def test_a_model_of_135_million_with_49_thousand_words(self, folder: Folder) -> None:
        lengths = "data.max_prompt_length=64", "data.max_response_length=64"
        config = composed(["+algo=gvpo", "+platform=cpu", f"{MODEL}={folder()}", *lengths])
        # 128 tokens are one block of 128 · 46,080 bytes, of which 33 are less than 256 MiB; the embedding is
        # 49,152 · 576 · 4 bytes, 108 MiB. A token takes 9 · 49,152 logits and 30 · (16 · 576 + 4 · 1536)
        # activations of 4 bytes, 3,612,672 bytes, and 2 GiB hold 594 of them.
        assert composed_sizes(config) == [128, 268435456, 108, True, 594]

    def test_log_probs_and_the_critic_follow(self, folder: Folder) -> None:
        config = on_cpu(folder())
        rollout, ref = config.actor_rollout_ref.rollout, config.actor_rollout_ref.ref
        assert (rollout.log_prob_use_dynamic_bsz, ref.log_prob_use_dynamic_bsz) == (True, True)
        assert (rollout.log_prob_max_token_len_per_gpu, ref.log_prob_max_token_len_per_gpu) == (594, 594)
        assert (config.critic.use_dynamic_bsz, config.critic.ppo_max_token_len_per_gpu) == (True, 594)

    def test_longer_budgets(self, folder: Folder) -> None:
        # 2048 tokens are 16 blocks; 32 sequences would take 2.8 GiB. A micro-batch holds one sequence.
        config = on_cpu(folder(), prompt=1024, response=1024)
        assert composed_sizes(config) == [2048, 2**30, 108, True, 2048]
        # 512 tokens are between the bounds: (32 · 4 + 1) · 128 · 46,080
        assert composed_sizes(on_cpu(folder(), prompt=256, response=256))[1] == 760872960
        # One sequence of 131,072 may need more: (1024 + 1) · 128 · 46,080
        config = on_cpu(folder(max_position_embeddings=131072), f"{LONGEST}=131072")
        assert composed_sizes(config)[:2] == [131072, 6045696000]

    def test_the_length_that_somebody_sets_counts_and_so_does_everything_else(self, folder: Folder) -> None:
        given = (f"{LONGEST}=300", f"{CACHE}=999", f"{BUCKET}=200", f"{ACTOR}.ppo_max_token_len_per_gpu=128")
        assert composed_sizes(on_cpu(folder(), *given)) == [300, 999, 200, True, 128]

    @pytest.mark.parametrize("key", ["ppo_micro_batch_size_per_gpu", "ppo_micro_batch_size"])
    def test_a_given_micro_batch_is_not_overruled(self, folder: Folder, key: str) -> None:
        config = on_cpu(folder(), f"{ACTOR}.{key}=4")
        assert config.actor_rollout_ref.actor.use_dynamic_bsz is False
        assert config.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz is False

    @pytest.mark.parametrize("text", [None, "{half", "[]", '{"vocab_size": "many"}'])
    def test_a_model_that_is_no_folder_or_does_not_say_has_fixed_sizes(
        self, tmp_path: Path, text: str | None
    ) -> None:
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        model = "Qwen/Qwen2.5-0.5B" if text is None else str(tmp_path)
        assert composed_sizes(on_cpu(model)) == [None, 268435456, 16, True, 16384]

    @pytest.mark.parametrize(
        "budgets", [{"prompt": 8000, "response": 8000}, {"prompt": "many", "response": 64}]
    )
    def test_budgets_that_the_model_or_nobody_can_take_are_left_to_verl(
        self, folder: Folder, budgets: dict[str, Any]
    ) -> None:
        assert composed_sizes(on_cpu(folder(), **budgets))[0] is None

    def test_the_embedded_tasks_micro_batches_are_verls(self, folder: Folder) -> None:
        model = folder(vocab_size=259, hidden_size=128, intermediate_size=256, num_hidden_layers=3)
        assert composed_sizes(on_cpu(model, prompt=32, response=80))[1:] == [268435456, 16, True, 16384]


class TestShape:
    def test_what_many_models_leave_out(self, folder: Folder, tmp_path: Path) -> None:
        folder()
        few = {key: SMOLLM[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers")}
        (tmp_path / "config.json").write_text(json.dumps(few | {"num_attention_heads": 9}))
        shape = model_shape(str(tmp_path))
        assert (shape.kv_heads, shape.head_size, shape.feed_forward, shape.positions) == (9, 64, 2304, None)

    def test_the_language_model_of_one_that_sees(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "seer", "text_config": SMOLLM}))
        shape = model_shape(str(tmp_path))
        assert (shape.layers, shape.vocabulary, shape.width) == (30, 49152, 576)

    def test_a_tensor_larger_than_the_embedding_is_found_in_the_weights(self, folder: Folder) -> None:
        model = folder(vocab_size=8, hidden_size=8, num_attention_heads=1)
        large = torch.zeros(5 * 2**20 + 1, dtype=torch.bfloat16)
        save_file({"small": torch.zeros(2, 3), "large": large}, Path(model) / "model.safetensors")
        # in float32, 20 MiB and 4 bytes
        assert sizes.bucket_megabytes(model) == 21

    def test_cut_weights_are_left_to_the_check_of_models(self, folder: Folder) -> None:
        model = folder(vocab_size=8, hidden_size=8, num_attention_heads=1)
        (Path(model) / "model.safetensors").write_bytes(b"half")
        assert sizes.bucket_megabytes(model) == 16


class TestNeighbours:
    """The same numbers from vLLM's and verl's own code."""

    def test_vllm_counts_the_cache_as_we_do(self, folder: Folder) -> None:
        from vllm.v1.kv_cache_interface import FullAttentionSpec

        layer = FullAttentionSpec(block_size=128, num_kv_heads=3, head_size=64, dtype=torch.float32)
        # 131,070 tokens are 1,024 blocks, and one is vLLM's
        assert sizes.kv_cache_bytes(folder(), 131_070) == 30 * layer.page_size_bytes * 1025

    @pytest.mark.parametrize(("less", "fits"), [(0, True), (1, False)])
    def test_verls_bucket_takes_the_embedding(
        self, folder: Folder, less: int, fits: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform_manager, "_current_platform", PlatformCPU())
        # 70,000 · 64 · 4 bytes, 17.09 MiB
        model = folder(vocab_size=70000, hidden_size=64, num_attention_heads=1)
        embedding = torch.arange(70000.0 * 64).view(70000, 64)
        megabytes = sizes.bucket_megabytes(model)
        assert megabytes == 18
        handle = f"ipc://{model}/weights"
        if fits:
            assert torch.equal(transferred(handle, embedding, megabytes - less)["embed"], embedding)
        else:
            with pytest.raises(AssertionError, match="too large to fit in the bucket"):
                transferred(handle, embedding, megabytes - less)


def transferred(handle: str, weight: torch.Tensor, megabytes: int) -> dict[str, torch.Tensor]:
    """Sent and received by verl's own code, through shared memory."""
    # The file alone: its package imports all of vLLM's server.
    file = Path(verl.__file__).parent / "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"
    spec = importlib.util.spec_from_file_location("bucketed_weight_transfer", file)
    transfer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(transfer)
    received: dict[str, torch.Tensor] = {}

    def take(weights: list[tuple[str, torch.Tensor]], _last: bool) -> None:
        received.update({name: tensor.clone() for name, tensor in weights})

    receiver = transfer.BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True)
    thread = threading.Thread(target=receiver.receive_weights, args=(take,), daemon=True)
    thread.start()
    sender = transfer.BucketedWeightSender(handle, bucket_size_mb=megabytes, use_shm=True)
    asyncio.run(sender.async_send_weights(iter([("embed", weight)])))
    thread.join(timeout=30)
    return received


def test_shared_memory_as_small_as_a_containers(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    config = on_cpu(folder(), "trainer.n_gpus_per_node=2")
    assert list(ADVICE["cpu-shared-memory"](config)) == []
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=64 * 2**20))
    (advice,) = ADVICE["cpu-shared-memory"](config)
    assert "is 108 for each of 2 ranks" in str(advice)
    assert "has 64 MiB here; valid is a size ≥ 216 MiB" in str(advice)
    assert str(advice).endswith("docker run --shm-size=432m …")
