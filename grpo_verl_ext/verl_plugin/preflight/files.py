"""Are the files there that the configuration names, and can they be read?"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig
from safetensors import SafetensorError, safe_open

from grpo_verl_ext.tasks.chain_sum import prepared
from grpo_verl_ext.typed_json import SPOILED, typed
from grpo_verl_ext.verl_plugin.findings import SettingError


def check_task(config: DictConfig) -> None:
    """The embedded task must have been prepared, and be whole."""
    task = config.get("task")
    if task is not None and task.get("name") == "chain_sum":
        try:
            prepared.check(task.folder)
        except prepared.PreparedTaskError as error:
            raise SettingError(str(error), key="task.folder") from error


def check_data(config: DictConfig) -> None:
    """Local data files must exist, and parquet files must have a readable footer."""
    for key in ("train_files", "val_files"):
        for name in _as_list(config.data.get(key)):
            if "://" not in name:
                _check_data_file(f"data.{key}", Path(name).expanduser())


def check_model(config: DictConfig) -> None:
    """A model given as a folder must be one: a readable ``config.json`` and whole weight files."""
    key = "actor_rollout_ref.model.path"
    name = str(config.actor_rollout_ref.model.path)
    folder = Path(name).expanduser()
    if not name.startswith(("/", "~", ".")) and not folder.exists():
        return  # the name of a model on a hub
    _check_model_folder(key, folder)


def _as_list(value: str | Iterable[str] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(item) for item in value]


def _check_data_file(key: str, file: Path) -> None:
    if not file.is_file():
        raise SettingError(
            f"{key} names {file}, which is not a file. Type: {key}=<existing .parquet file>",
            key=key,
        )
    if file.suffix == ".parquet":
        try:
            pyarrow.parquet.read_metadata(file)
        except (pyarrow.ArrowException, OSError) as error:
            raise SettingError(
                f"{key} names {file}, which is not a readable parquet file ({error}). It was left in place. "
                f"Make it again, then type the same command",
                key=key,
            ) from error


def read_model_config(key: str, file: Path) -> dict[str, Any]:
    """What a model's ``config.json`` says.

    Raises:
        SettingError: it is no JSON object.
    """
    try:
        return typed(json.loads(file.read_bytes()), {})
    except SPOILED as error:
        raise SettingError(
            f"{file} is not valid JSON of a model ({error}). It was left in place. "
            f"Type: {key}=<folder of a Hugging Face model>",
            key=key,
        ) from error


def _check_model_folder(key: str, folder: Path) -> None:
    remedy = f"Type: {key}=<folder of a Hugging Face model>"
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise SettingError(f"{key} is {folder}, but there is no {config_file}. {remedy}", key=key)
    read_model_config(key, config_file)
    for weights in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(weights, framework="pt"):
                pass
        except SafetensorError as error:
            raise SettingError(
                f"{weights} is not a readable safetensors file ({error}). It was left in place. {remedy}",
                key=key,
            ) from error
