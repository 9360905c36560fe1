"""Check that the data and model files named by a configuration are readable.

A path that is missing here is a warning: on a cluster perhaps only the workers see it.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open

from grpo_verl_ext.tasks import folders
from grpo_verl_ext.tasks.chain_sum import prepared
from grpo_verl_ext.utils.errors import Problem, SettingError
from grpo_verl_ext.utils.keys import MODEL, setting
from grpo_verl_ext.verl_plugin.model_files import FIX, home_resolved, local_folder, read_config
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
    folder = f"{task.folder}/" if task is not None and task.name in prepared.TASKS else None
    for problem in _unreadable(config):
        if folder is None or not str(problem.value).startswith(folder):
            yield problem


def _unreadable(config: DictConfig) -> Iterator[Problem]:
    if not (config.data.get("custom_cls") or {}).get("path"):
        for key in ("train_files", "val_files"):
            names = config.data.get(key) or []
            for name in map(str, names if OmegaConf.is_list(names) else [names]):
                yield from _missing(f"data.{key}", name)
                yield from _data_file(f"data.{key}", home_resolved(name))
    reward = "reward.custom_reward_function.path"
    yield from _missing(reward, str(setting(config, reward, "")))
    name = str(config.actor_rollout_ref.model.path)
    yield from _missing(MODEL, name)
    folder = local_folder(name)
    if folder is not None and (folder / "config.json").is_file():
        yield from _model(folder)


def _missing(key: str, name: str) -> Iterator[Problem]:
    is_local = name.startswith(_LOCAL_PATHS) or (name.endswith(_FILES) and "://" not in name)
    if is_local and not home_resolved(name).exists():
        why = "that is not on this machine, which is wrong unless the workers see it"
        yield Problem(key, name, f"{key}=<a path that exists>", why)


def _data_file(key: str, file: Path) -> Iterator[Problem]:
    if file.suffix == ".parquet" and file.is_file():
        try:
            pyarrow.parquet.read_metadata(file)
        except (pyarrow.ArrowException, OSError) as error:
            yield Problem(
                key,
                str(file),
                why=f"that is not a readable parquet file ({error}); it was left in place",
                fix=f"{key}=<another file>, or the same command when you have made it again",
            )


def _model(folder: Path) -> Iterator[Problem]:
    try:
        read_config(folder, key=MODEL, fix=FIX)
    except SettingError as error:
        yield error.problem
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except SafetensorError as error:
            why = f"{file} is not a readable safetensors file ({error}); it was left in place"
            yield Problem(MODEL, str(folder), why=why, fix=FIX)
