"""Check that the model fits vLLM's cache, the buffer for its weights, shared memory and the machine."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
from omegaconf import DictConfig

from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import ACTOR, MODEL, ROLLOUT, setting
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.cpu import sizes
from grpo_verl_ext.verl_plugin.model_files import ModelShape, bytes_of_weights, model_shape, tensor_sizes

CACHE = f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes"
BUCKET = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
LONGEST = f"{ROLLOUT}.max_model_len"
_CACHE_OVERRIDES = ("block_size", "dtype", "hf_overrides", "kv_cache_dtype", "max_model_len")
"""Options of vLLM with which its cache has another size than this module computes."""
_SHARED_MEMORY = Path("/dev/shm")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_REWARD_MODEL = "reward model"
"""Name of its part in the message on memory."""
_TRAINED_COPIES = 4
"""Numbers per trained weight: the weight, its gradient and Adam's two moments."""
_PROCESSES = 4 * sizes.GIBI
"""Bytes of the processes without a model, with one rank; measured: 4.5 GiB (benchmarks/cpu_own_model.py)."""


def check_cache(config: DictConfig) -> None:
    """Refuse a key-value cache without room for a full sequence; vLLM refuses it a minute after the start."""
    given, shape = setting(config, CACHE), model_shape(setting(config, MODEL))
    if not _is_ours(config) or shape is None or not shape.full_attention or not is_count(given):
        return
    tokens = setting(config, LONGEST) or shape.positions
    vllm = config.actor_rollout_ref.rollout.engine_kwargs.vllm
    # vLLM's variable for the cache wins over the setting
    if not tokens or os.environ.get("VLLM_CPU_KVCACHE_SPACE") or any(map(vllm.get, _CACHE_OVERRIDES)):
        return
    least = tokens * shape.cache_numbers * sizes.FP32
    if given < least:
        both, model = config.data.max_prompt_length + config.data.max_response_length, setting(config, MODEL)
        shorter = f", or {LONGEST}={both}" if both < tokens else ""
        raise SettingError(
            CACHE,
            given,
            why=f"a sequence of {tokens} tokens has {least} bytes of keys and values in {model}, and vLLM "
            "starts only with room for one",
            valid=f"an integer ≥ {sizes.cache_of(1, shape, tokens)}",
            fix=Line(f"{CACHE}={sizes.kv_cache_bytes(model, tokens)}", more=shorter),
        )


def check_bucket(config: DictConfig) -> None:
    """Refuse a weight buffer smaller than the embedding, which verl asserts only after the start."""
    given, shape = setting(config, BUCKET), model_shape(setting(config, MODEL))
    if not _is_ours(config) or shape is None or not is_count(given):
        return
    size = shape.embedding * sizes.FP32
    if given * sizes.MEBI < size:
        needed = sizes.bucket_megabytes(setting(config, MODEL))
        raise SettingError(
            BUCKET,
            given,
            why=f"the embedding of {setting(config, MODEL)}, {shape.vocabulary} words × {shape.width} in "
            f"float32, has {size / sizes.MEBI:.1f} MiB and travels in one piece",
            valid=f"an integer ≥ {needed}",
            fix=Line(f"{BUCKET}={needed}"),
        )


def advise_shared_memory(config: DictConfig) -> Iterator[Problem]:
    """Warn if /dev/shm is too small for the weight buffers; writing beyond its end is a bare "bus error"."""
    bucket, ranks = setting(config, BUCKET), config.trainer.n_gpus_per_node
    if not _is_ours(config) or not is_count(bucket) or not _SHARED_MEMORY.exists():
        return
    there, needed = shutil.disk_usage(_SHARED_MEMORY).total, bucket * ranks
    if there < needed * sizes.MEBI:
        yield Problem(
            BUCKET,
            bucket,
            seen=f"{BUCKET} is {bucket} for each of {ranks} ranks",
            why=f"{_SHARED_MEMORY}, through which the weights travel, has {there // sizes.MEBI} MiB here",
            valid=f"a size ≥ {needed} MiB",
            fix=f"mount -o remount,size={2 * needed}m {_SHARED_MEMORY}, or docker run "
            f"--shm-size={2 * needed}m …",
        )


def advise_memory(config: DictConfig) -> Iterator[Problem]:
    """Warn if the machine has too little memory; Ray kills processes, and with them the training."""
    shape, weights = model_shape(setting(config, MODEL)), sum(tensor_sizes(setting(config, MODEL)))
    if not _is_ours(config) or shape is None or not weights:
        return
    there, parts = memory_of_machine(), _parts(config, shape, weights)
    if sum(parts.values()) > there:
        listed = ", ".join(f"{name} {size / sizes.GIBI:.1f}" for name, size in parts.items())
        yield Problem(
            MODEL,
            setting(config, MODEL),
            why=f"with it a node needs about {sum(parts.values()) / sizes.GIBI:.1f} GiB ({listed}), and "
            f"this one has {there / sizes.GIBI:.1f} GiB",
            fix="reward.num_workers=1, or a smaller reward model"
            if max(parts, key=lambda name: parts[name]) == _REWARD_MODEL
            else f"{MODEL}=<a smaller model>, or trainer.n_gpus_per_node=1",
        )


def memory_of_machine() -> int:
    """Return the bytes of the machine's memory, or of the container's limit where that is lower."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):
        return total


def _parts(config: DictConfig, shape: ModelShape, weights: int) -> dict[str, int]:
    """Return the bytes that a node needs, by purpose, with its share of the trained weights.

    In an update a rank has a micro-batch whose responses all use up their budget; each of verl's
    reward processes loads the reward model.
    """
    actor, ranks, size = config.actor_rollout_ref.actor, config.trainer.n_gpus_per_node, weights * sizes.FP32
    cache, nodes = setting(config, CACHE), config.trainer.nnodes
    longest = config.data.max_prompt_length + config.data.max_response_length
    tokens = longest * (actor.ppo_micro_batch_size_per_gpu or 1)
    if actor.use_dynamic_bsz:
        rows = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n // (ranks * nodes)
        limit = actor.ppo_max_token_len_per_gpu
        tokens = min(limit if is_count(limit) else sizes.TOKENS_AT_MOST, longest * max(1, rows))
    model = Options.from_config(config.algorithm).reward_model
    path, in_files = (None, False) if model is None else (model.path, model.dtype == "auto")
    of_model = bytes_of_weights(path) if in_files else sum(tensor_sizes(path)) * sizes.FP32
    has_reference = actor.use_kl_loss or config.algorithm.use_kl_in_reward
    return {
        "weights, gradients and Adam": _TRAINED_COPIES * (size // nodes),
        "reference": size // nodes if has_reference else 0,
        "weights in vLLM": ranks * size,
        "key-value cache": ranks * cache if is_count(cache) else 0,
        "logits and activations": ranks * int(tokens) * sizes.bytes_of_token(shape),
        _REWARD_MODEL: int(-(-config.reward.num_workers // nodes) * of_model),
        "processes": _PROCESSES,
    }


def _is_ours(config: DictConfig) -> bool:
    """Whether the training is on this platform with vLLM, in float32, and trains every weight."""
    rollout = config.actor_rollout_ref.rollout
    return (
        config.trainer.device == "cpu"
        and rollout.name == "vllm"
        and rollout.dtype == "float32"
        and rollout.tensor_model_parallel_size == 1
        and setting(config, f"{ACTOR}.fsdp_config.model_dtype") == "fp32"
        and not setting(config, "actor_rollout_ref.model.lora.rank")
        and not setting(config, "actor_rollout_ref.model.lora_rank")
    )
