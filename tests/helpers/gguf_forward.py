"""A Llama's logits from a GGUF file in numpy: what a converted model is compared with.

The weights are those of the file, dequantised by the package ``gguf`` and used in the file's own layout, in
which a head's rotary pairs are neighbours (2i, 2i+1) as in llama.cpp; transformers permutes them. Activations
stay in float32, while llama.cpp's kernels quantise them, so its own logits differ more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def gguf_logits(file: Path, tokens: Sequence[int]) -> Array:
    """Return the logits after each token, (T, V)."""
    llama = _Llama(file)
    x = llama.weight("token_embd")[np.asarray(tokens)]
    for block in range(llama.number("block_count")):
        x = x + _attention(llama, block, x)
        x = x + _feed_forward(llama, block, x)
    x = llama.norm("output_norm", x)
    logits: Array = x @ llama.weight("output" if llama.has("output") else "token_embd").T
    return logits


class _Llama:
    def __init__(self, file: Path) -> None:
        from gguf import GGUFReader

        self._reader = GGUFReader(file)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def number(self, key: str) -> Any:
        return self._reader.fields[f"llama.{key}"].contents()

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self._tensors

    def weight(self, name: str) -> Array:
        """One matrix (outputs, inputs), or one vector."""
        from gguf.quants import dequantize

        tensor = self._tensors[f"{name}.weight"]
        weight: Array = dequantize(tensor.data, tensor.tensor_type)
        return weight

    def norm(self, name: str, x: Array) -> Array:
        """x / √(mean x² + ε) · weight."""
        variance = np.square(x).mean(-1, keepdims=True)
        scaled: Array = x / np.sqrt(variance + self.number("attention.layer_norm_rms_epsilon"))
        return scaled * self.weight(name)


def _attention(llama: _Llama, block: int, x: Array) -> Array:
    heads, kv_heads = llama.number("attention.head_count"), llama.number("attention.head_count_kv")
    normed = llama.norm(f"blk.{block}.attn_norm", x)
    query, key, value = (
        (normed @ llama.weight(f"blk.{block}.attn_{part}").T).reshape(len(x), count, -1).swapaxes(0, 1)
        for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    )
    query, key = (_rotated(each, llama.number("rope.freq_base")) for each in (query, key))
    key, value = (each.repeat(heads // kv_heads, axis=0) for each in (key, value))
    scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True)) @ value
    out: Array = mixed.swapaxes(0, 1).reshape(len(x), -1) @ llama.weight(f"blk.{block}.attn_output").T
    return out


def _rotated(x: Array, base: float) -> Array:
    """Turn the pair (2i, 2i+1) of the token at position t by t · base^(−2i/d); x is (heads, T, d)."""
    size = x.shape[-1]
    angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(0, size, 2) / size)
    cos, sin = np.cos(angle), np.sin(angle)
    even, odd = x[..., ::2], x[..., 1::2]
    turned = np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return turned.reshape(x.shape).astype(np.float32)


def _feed_forward(llama: _Llama, block: int, x: Array) -> Array:
    normed = llama.norm(f"blk.{block}.ffn_norm", x)
    gate, up = (normed @ llama.weight(f"blk.{block}.ffn_{part}").T for part in ("gate", "up"))
    out: Array = (gate / (1 + np.exp(-gate)) * up) @ llama.weight(f"blk.{block}.ffn_down").T
    return out
