"""Read a local model folder: its ``config.json`` and its sizes. Names on a hub are not looked up."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, typed
from grpo_verl_ext.verl_plugin.config import MODEL
from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.rules import is_count

FIX = f"{MODEL}=<folder of a Hugging Face model>"
"""The line to type where the policy's model is wrong."""


def home_resolved(name: str) -> Path:
    """Return the path with ``~`` expanded as in the shell; ``~unknown`` stays."""
    return Path(os.path.expanduser(name))


def local_folder(name: str) -> Path | None:
    """Return the folder of a model, or None for a name on a hub."""
    folder = home_resolved(name)
    return folder if name.startswith(("/", "~", ".")) or folder.exists() else None


def read_config(folder: Path, *, key: str, fix: str) -> dict[str, Any]:
    """Read the ``config.json`` of a model folder.

    Args:
        key: the setting that names the folder.
        fix: the line to type.

    Raises:
        SettingError: the file is missing or not a JSON object; it is left in place.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise SettingError(key, str(folder), why=f"there is no {file}", fix=fix)
    try:
        return typed(json.loads(file.read_bytes()), {})
    except PARSE_ERRORS as error:
        why = f"{file} is not valid JSON of a model ({error}); it was left in place"
        raise SettingError(key, str(folder), why=why, fix=fix) from error


def has_chat_template(folder: Path) -> bool:
    """Whether a model folder has a chat template, in a file of its own or in its tokenizer's settings."""
    settings = folder / "tokenizer_config.json"
    return (folder / "chat_template.jinja").is_file() or (
        settings.is_file() and b'"chat_template"' in settings.read_bytes()
    )


FULL_ATTENTION = ("llama", "mistral", "qwen2", "qwen3")
"""Values of ``model_type`` with full attention in every layer, unless a sliding window is configured."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model from its ``config.json``."""

    vocabulary: int
    width: int
    feed_forward: int
    layers: int
    kv_heads: int
    head_size: int
    positions: int | None
    """The longest context; None if not in the file."""
    full_attention: bool
    """Whether every layer certainly caches keys and values of all tokens."""

    @property
    def cache_numbers(self) -> int:
        """Count of numbers in the cached keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size

    @property
    def embedding(self) -> int:
        """Count of weights in the embedding, usually the largest tensor."""
        return self.vocabulary * self.width


def model_shape(path: object) -> ModelShape | None:
    """Return the model's sizes; None for a name on a hub, an unreadable file or unknown field names."""
    folder = local_folder(path) if isinstance(path, str) else None
    if folder is None:
        return None
    try:
        content = read_config(folder, key=MODEL, fix=FIX)
    except (SettingError, OSError):
        return None
    text = content.get("text_config")
    return _shape(text if isinstance(text, dict) else content)


def tensor_sizes(path: object) -> list[int]:
    """Return the number of weights of each tensor in the ``.safetensors`` files, read from their headers."""
    folder = local_folder(path) if isinstance(path, str) else None
    if folder is None:
        return []
    files = sorted(folder.glob("*.safetensors"))
    return [size for file in files for size in _sizes_in(file)]


def _sizes_in(file: Path) -> list[int]:
    # Imported here because verl loads the plugin in every process.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as weights:
            return [prod(weights.get_slice(name).get_shape()) for name in weights.keys()]  # noqa: SIM118
    except (SafetensorError, OSError):
        return []


def _shape(content: Mapping[str, Any]) -> ModelShape | None:
    heads, width = content.get("num_attention_heads"), content.get("hidden_size")
    if not (is_count(heads) and is_count(width)):
        return None
    counts: dict[str, Any] = {
        "vocabulary": content.get("vocab_size"),
        "width": width,
        "feed_forward": content.get("intermediate_size") or 4 * width,
        "layers": content.get("num_hidden_layers"),
        "kv_heads": content.get("num_key_value_heads") or heads,
        "head_size": content.get("head_dim") or max(1, width // heads),
    }
    if not all(is_count(count) for count in counts.values()):
        return None
    positions = content.get("max_position_embeddings")
    return ModelShape(
        **counts,
        positions=positions if is_count(positions) else None,
        full_attention=_is_full(content),
    )


def _is_full(content: Mapping[str, Any]) -> bool:
    windowed = content.get("sliding_window") is not None and content.get("use_sliding_window") is not False
    return content.get("model_type") in FULL_ATTENTION and not windowed
