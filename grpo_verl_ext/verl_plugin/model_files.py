"""Read a local model folder: its ``config.json`` and its sizes. Names on a hub are not looked up."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verl_ext.utils.documents import parse_json
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import MODEL
from grpo_verl_ext.utils.options import is_count

_FIX = f"{MODEL}=<folder of a Hugging Face model>"
"""The line to type where the policy's model is wrong."""


def local_folder(name: str) -> Path | None:
    """Return the folder of a model, or None for a name on a hub."""
    folder = Path(os.path.expanduser(name))  # Path.expanduser would raise for the home of nobody
    return folder if name.startswith(("/", "~", ".")) or folder.exists() else None


def read_config(folder: Path, *, key: str = MODEL, fix: str = _FIX) -> dict[str, Any]:
    """Read the ``config.json`` of a model folder, which the setting ``key`` names."""
    file = folder / "config.json"
    if not file.is_file():
        raise SettingError(key, str(folder), why=f"there is no {file}", fix=fix)
    try:
        return parse_json(file.read_bytes(), dict[str, Any])
    except ValueError as error:
        why = f"{file} is not valid JSON of a model ({error}); it was left in place"
        raise SettingError(key, str(folder), why=why, fix=fix) from error


@dataclass(frozen=True)
class _ModelShape:
    """Sizes of a model from its ``config.json``."""

    vocabulary: int
    width: int
    feed_forward: int
    layers: int
    kv_heads: int
    head_size: int
    positions: int | None
    """The longest context; None if not in the file."""


def model_shape(path: object) -> _ModelShape | None:
    """Return the model's sizes; None for a name on a hub, an unreadable file or unknown field names."""
    folder = local_folder(path) if isinstance(path, str) else None
    if folder is None:
        return None
    try:
        content = read_config(folder)
    except (SettingError, OSError):
        return None
    if isinstance(text := content.get("text_config"), dict):
        content = text
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
    return _ModelShape(**counts, positions=positions if is_count(positions) else None)
