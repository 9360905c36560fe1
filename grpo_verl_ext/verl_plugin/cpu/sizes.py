"""Compute buffer and batch sizes for a training on CPU from the model's folder and the token budgets.

``config/platform/cpu.yaml`` gets them by resolvers. A model that is not a local folder gets fixed values, and
so does one whose ``config.json`` cannot be read, which a check reports.
"""

from contextlib import suppress
from math import prod

from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.model_files import local_folder, model_shape

MEBI, _GIBI = 2**20, 2**30
_FP32 = 4
"""Bytes per number: everything on this platform is float32."""

_CACHE_BLOCK = 128
"""Tokens per block of vLLM's key-value cache on a CPU (``vllm/platforms/cpu.py``)."""
_CACHED_SEQUENCES = 32
"""Full-length sequences for which the cache has room, if `_CACHE_AT_MOST` allows it."""
_CACHE_AT_LEAST, _CACHE_AT_MOST = 256 * MEBI, _GIBI
"""Bytes per replica; exceeded only where a single sequence needs more."""

_BUCKET_AT_LEAST = 16
"""MiB; verl's default of 2048 may not fit /dev/shm."""

_TOKENS_AT_MOST = 16384
"""verl's default for the tokens of a micro-batch."""
_MICRO_BATCH_BYTES = 2 * _GIBI
"""Bytes per rank for the logits and activations of a micro-batch."""
_LOGITS_COPIES = 9
"""Copies of the logits at the peak of an update that reports the entropy; measured: 8.0, padding included."""
WIDTHS_SAVED, FEED_FORWARDS_SAVED = 16, 4
"""A layer saves these multiples of the width and feed-forward size per token; measured: 0.77 of the sum."""


def max_model_len(path: object, prompt: object, response: object) -> int | None:
    """Return the sum of the two budgets, for which the cache needs room; None for the model's context."""
    shape = model_shape(path)
    if shape is None or not (is_count(prompt) and is_count(response)):
        return None
    too_long = shape.positions is not None and prompt + response > shape.positions
    return None if too_long else prompt + response


def kv_cache_bytes(path: object, longest: object) -> int:
    """Return the bytes of a replica's cache, for ``longest`` tokens per sequence (None: model's context)."""
    shape = model_shape(path)
    tokens = longest if is_count(longest) else shape and shape.positions
    if shape is None or not tokens:
        return _CACHE_AT_LEAST
    of_token = 2 * shape.layers * shape.kv_heads * shape.head_size * _FP32  # its keys and values
    # vLLM reserves one block more
    one, many = (
        (sequences * -(-tokens // _CACHE_BLOCK) + 1) * _CACHE_BLOCK * of_token
        for sequences in (1, _CACHED_SEQUENCES)
    )
    return max(_CACHE_AT_LEAST, one, min(_CACHE_AT_MOST, many))


def bucket_megabytes(path: object) -> int:
    """Return the MiB of shared memory through which weights are transferred, each tensor in one piece."""
    # Imported here because verl loads the plugin in every process.
    from safetensors import SafetensorError, safe_open

    shape, folder = model_shape(path), local_folder(path) if isinstance(path, str) else None
    numbers = [shape.vocabulary * shape.width if shape else 0]  # of the embedding, then of each tensor
    for file in sorted(folder.glob("*.safetensors")) if folder else ():
        with suppress(SafetensorError, OSError), safe_open(file, framework="np") as weights:
            numbers += [prod(weights.get_slice(name).get_shape()) for name in weights.keys()]  # noqa: SIM118
    return max(_BUCKET_AT_LEAST, -(-max(numbers) * _FP32 // MEBI))


def micro_batch_tokens(path: object, prompt: object, response: object) -> int:
    """Return the tokens of a micro-batch, for updates and log-probs; at least the longest sequence."""
    shape = model_shape(path)
    if shape is None or not (is_count(prompt) and is_count(response)):
        return _TOKENS_AT_MOST
    saved = WIDTHS_SAVED * shape.width + FEED_FORWARDS_SAVED * shape.feed_forward
    numbers_of_token = _LOGITS_COPIES * shape.vocabulary + shape.layers * saved
    return max(prompt + response, min(_TOKENS_AT_MOST, _MICRO_BATCH_BYTES // (_FP32 * numbers_of_token)))
