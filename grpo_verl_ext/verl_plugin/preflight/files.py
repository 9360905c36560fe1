"""Are the files there that the configuration names, and can they be read?"""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open

from grpo_verl_ext.tasks.chain_sum import prepared
from grpo_verl_ext.verl_plugin.findings import SettingError
from grpo_verl_ext.verl_plugin.keys import MODEL
from grpo_verl_ext.verl_plugin.model_folder import REMEDY, home_resolved, local_folder, read_config


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
                _check_data_file(f"data.{key}", home_resolved(name))


def check_model(config: DictConfig) -> None:
    """A model given as a folder must be one: a readable ``config.json`` and whole weight files."""
    folder = local_folder(str(config.actor_rollout_ref.model.path))
    if folder is not None:
        read_config(folder, key=MODEL, remedy=REMEDY)
        for weights in sorted(folder.glob("*.safetensors")):
            _check_weights(weights)


def _as_list(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if OmegaConf.is_list(value) else [str(value)]


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


def _check_weights(file: Path) -> None:
    try:
        with safe_open(file, framework="pt"):
            pass
    except SafetensorError as error:
        raise SettingError(
            f"{file} is not a readable safetensors file ({error}). It was left in place. {REMEDY}",
            key=MODEL,
        ) from error
