"""A model that a setting names: a folder of this machine, or something on a hub."""

import json
import os
from pathlib import Path
from typing import Any

from grpo_verl_ext.typed_json import SPOILED, typed
from grpo_verl_ext.verl_plugin.findings import SettingError
from grpo_verl_ext.verl_plugin.keys import MODEL

REMEDY = f"Type: {MODEL}=<folder of a Hugging Face model>"
"""The line to type where the policy's model is wrong."""


def home_resolved(name: str) -> Path:
    """With ``~`` as the shell has it: the home of nobody stays as it is, and is no folder."""
    return Path(os.path.expanduser(name))


def local_folder(name: str) -> Path | None:
    """The folder; None for the name of a model on a hub, about which nothing is asked."""
    folder = home_resolved(name)
    return folder if name.startswith(("/", "~", ".")) or folder.exists() else None


def read_config(folder: Path, *, key: str, remedy: str) -> dict[str, Any]:
    """Its ``config.json``.

    Args:
        key: the setting that names the folder.
        remedy: the line to type.

    Raises:
        SettingError: there is none, or it is no JSON object. It is left in place.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise SettingError(f"{key} is {folder}, but there is no {file}. {remedy}", key=key)
    try:
        return typed(json.loads(file.read_bytes()), {})
    except SPOILED as error:
        raise SettingError(
            f"{file} is not valid JSON of a model ({error}). It was left in place. {remedy}", key=key
        ) from error
