"""Sizes of a training on the processor, from the model's folder and the budgets of tokens.

``config/platform/cpu.yaml`` asks for them by resolvers. A model that is no local folder gets the fixed
values, and so does one whose ``config.json`` cannot be read: that a check says.
"""

from grpo_verl_ext.verl_plugin.config import is_count
from grpo_verl_ext.verl_plugin.model_files import ModelShape, model_shape, tensor_sizes

MEBI, GIBI = 2**20, 2**30
FP32 = 4
"""Bytes of a number: the platform is float32 throughout."""

CACHE_BLOCK = 128
"""Tokens of a block of vLLM's key-value cache on the processor (``vllm/platforms/cpu.py``)."""
CACHED_SEQUENCES = 32
"""So many sequences of full length are held at once, where `CACHE_AT_MOST` allows it."""
CACHE_AT_LEAST, CACHE_AT_MOST = 256 * MEBI, GIBI
"""Bytes of a replica; more only where a single sequence needs it."""

BUCKET_AT_LEAST = 16
"""MiB; verl's default of 2048 may not fit /dev/shm."""

TOKENS_AT_MOST = 16384
"""verl's default."""
MICRO_BATCH_BYTES = 2 * GIBI
"""Of a rank, for the logits and activations of a micro-batch."""
LOGITS_COPIES = 9
"""Of a micro-batch, at the peak of an update that reports the entropy; measured: 8.0, padding included."""
WIDTHS_SAVED, FEED_FORWARDS_SAVED = 16, 4
"""Times the width and the feed-forward size: numbers that a layer saves of a token; measured: 0.77 of it."""


def max_model_len(path: object, prompt: object, response: object) -> int | None:
    """Tokens of the longest sequence: the two budgets. None is verl's default, the model's whole context.

    The cache must hold one such sequence, so a model of a long context would need gigabytes of it.
    """
    shape = model_shape(path)
    if shape is None or not (is_count(prompt) and is_count(response)):
        return None
    too_long = shape.positions is not None and prompt + response > shape.positions
    return None if too_long else prompt + response


def kv_cache_bytes(path: object, longest: object) -> int:
    """Of a replica, for ``longest`` tokens a sequence (None: the model's context)."""
    shape = model_shape(path)
    tokens = longest if is_count(longest) else shape and shape.positions
    if shape is None or not tokens:
        return CACHE_AT_LEAST
    many = cache_of(CACHED_SEQUENCES, shape, tokens)
    return max(CACHE_AT_LEAST, cache_of(1, shape, tokens), min(CACHE_AT_MOST, many))


def cache_of(sequences: int, shape: ModelShape, tokens: int) -> int:
    """Bytes of whole blocks for sequences of so many tokens; vLLM keeps one block for itself."""
    blocks = sequences * -(-tokens // CACHE_BLOCK) + 1
    return blocks * CACHE_BLOCK * shape.cache_numbers * FP32


def bucket_megabytes(path: object) -> int:
    """Of the shared memory through which weights travel, a tensor in one piece."""
    shape = model_shape(path)
    largest = max([shape.embedding if shape else 0, *tensor_sizes(path)])
    return max(BUCKET_AT_LEAST, -(-largest * FP32 // MEBI))


def micro_batch_tokens(path: object, prompt: object, response: object) -> int:
    """Of a micro-batch, in an update and for log-probs; never less than the longest sequence has."""
    shape = model_shape(path)
    if shape is None or not (is_count(prompt) and is_count(response)):
        return TOKENS_AT_MOST
    return max(prompt + response, min(TOKENS_AT_MOST, MICRO_BATCH_BYTES // bytes_of_token(shape)))


def bytes_of_token(shape: ModelShape) -> int:
    """Logits and activations of a token at the peak of an update."""
    saved = WIDTHS_SAVED * shape.width + FEED_FORWARDS_SAVED * shape.feed_forward
    return FP32 * (LOGITS_COPIES * shape.vocabulary + shape.layers * saved)
