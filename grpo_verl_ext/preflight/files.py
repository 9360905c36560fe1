"""Check that the data and model files named by a configuration are readable.

A path that is missing here is a warning: on a cluster perhaps only the workers see it.
"""

from collections.abc import Iterator

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open

from grpo_verl_ext.tasks import folders
from grpo_verl_ext.tasks.chain_sum import prepared
from grpo_verl_ext.utils.errors import Problem, SettingError
from grpo_verl_ext.utils.keys import MODEL, setting
from grpo_verl_ext.verl_plugin.model_files import FIX, home_resolved, read_config
from grpo_verl_ext.verl_plugin.usage import own_task

_LOCAL_PATHS = ("/", "~", "./", "../")
"""Beginnings of a path on a machine, unlike those of a hub or of a module."""
_FILES = (".parquet", ".json", ".jsonl", ".py")
"""Ends of a file's name, unlike those of a model on a hub."""


def check_task(config: DictConfig) -> None:
    """Refuse a task that ``grpo-verl-ext prepare`` makes and that is not prepared or not complete."""
    task = own_task(config)
    if task is not None and task.name in prepared.TASKS:
        try:
            prepared.read_checked(task.folder)
        except folders.PreparedFolderError as error:
            raise SettingError("task.folder", task.folder, seen=str(error)) from error


def advise_files(config: DictConfig) -> Iterator[Problem]:
    """Warn of data, model and reward function that are missing or unreadable on this machine."""
    task = own_task(config)  # of whose folder `check_task` speaks
    prepared_folder = f"{task.folder}/" if task is not None and task.name in prepared.TASKS else None
    files = (
        [] if (config.data.get("custom_cls") or {}).get("path") else ["data.train_files", "data.val_files"]
    )
    for key in (*files, "reward.custom_reward_function.path", MODEL):
        names = setting(config, key) or []
        for name in map(str, names if OmegaConf.is_list(names) else [names]):
            if prepared_folder is None or not name.startswith(prepared_folder):
                yield from _unreadable(key, name)


def _unreadable(key: str, name: str) -> Iterator[Problem]:
    path, left = home_resolved(name), "it was left in place"
    is_local = name.startswith(_LOCAL_PATHS) or (name.endswith(_FILES) and "://" not in name)
    if is_local and not path.exists():
        why = "that is not on this machine, which is wrong unless the workers see it"
        yield Problem(key, name, f"{key}=<a path that exists>", why)
    if key.startswith("data.") and path.suffix == ".parquet" and path.is_file():
        try:
            pyarrow.parquet.read_metadata(path)
        except (pyarrow.ArrowException, OSError) as error:
            why = f"that is not a readable parquet file ({error}); {left}"
            fix = f"{key}=<another file>, or the same command when you have made it again"
            yield Problem(key, str(path), fix, why)
    if key == MODEL and (path / "config.json").is_file():
        try:
            read_config(path, key=MODEL, fix=FIX)
        except SettingError as error:
            yield error.problem
        for file in sorted(path.glob("*.safetensors")):
            try:
                with safe_open(file, framework="pt"):
                    pass
            except SafetensorError as error:
                why = f"{file} is not a readable safetensors file ({error}); {left}"
                yield Problem(MODEL, str(path), FIX, why)
