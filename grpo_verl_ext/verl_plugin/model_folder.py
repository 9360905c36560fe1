"""A model that a setting names: a folder of this machine, or something on a hub."""

import json
import os
from pathlib import Path
from typing import Any

from grpo_verl_ext.utils.typed_json import PARSE_ERRORS, typed
from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.keys import MODEL

FIX = f"{MODEL}=<folder of a Hugging Face model>"
"""The line to type where the policy's model is wrong."""


def home_resolved(name: str) -> Path:
    """With ``~`` as the shell has it: the home of nobody stays as it is, and is no folder."""
    return Path(os.path.expanduser(name))


def local_folder(name: str) -> Path | None:
    """The folder; None for the name of a model on a hub, about which nothing is asked."""
    folder = home_resolved(name)
    return folder if name.startswith(("/", "~", ".")) or folder.exists() else None


def read_config(folder: Path, *, key: str, fix: str) -> dict[str, Any]:
    """Its ``config.json``.

    Args:
        key: the setting that names the folder.
        fix: the line to type.

    Raises:
        SettingError: there is none, or it is no JSON object. It is left in place.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise SettingError(key, str(folder), why=f"there is no {file}", fix=fix)
    try:
        return typed(json.loads(file.read_bytes()), {})
    except PARSE_ERRORS as error:
        why = f"{file} is not valid JSON of a model ({error}); it was left in place"
        raise SettingError(key, str(folder), why=why, fix=fix) from error
