"""Check that this machine has the files, platform, packages and trackers of a configuration.

A path that is missing here is a warning: on a cluster perhaps only the workers see it.
"""

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.catalogue import PRESETS
from grpo_verl_ext.catalogue.verls import asks_model_alone
from grpo_verl_ext.tasks import folders
from grpo_verl_ext.tasks.chain_sum import prepared
from grpo_verl_ext.utils.console import say
from grpo_verl_ext.utils.documents import read_if_there
from grpo_verl_ext.utils.errors import Line, Problem, SettingError, as_typed
from grpo_verl_ext.utils.files import check_folder, sha256_here, write_whole
from grpo_verl_ext.utils.keys import ESTIMATOR, LOSS, MODEL, PRESET, REWARD_MANAGER, ROLLOUT, SECTION, setting
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin import queue_missing, usage
from grpo_verl_ext.verl_plugin.cpu import PLATFORM_VARIABLE, chosen_platform
from grpo_verl_ext.verl_plugin.features import Feature
from grpo_verl_ext.verl_plugin.model_files import read_config

_FOLDER, _NOTE = "trainer.default_local_dir", "grpo_verl_ext.json"
"""Folder of a training's checkpoints, and the file in it that says what they are trained by."""
_LOGGER = "trainer.logger"
_NAMED_ALIKE = ("wandb", "mlflow", "swanlab", "tensorboard", "clearml", "trackio", "rl_insight")
_TRACKERS = {"tracking": "wandb", "vemlp_wandb": "volcengine_ml_platform"} | {x: x for x in _NAMED_ALIKE}
"""Values of ``trainer.logger`` → the module that verl's ``Tracking`` imports for them."""


def _prepared_folder(config: DictConfig) -> str | None:
    """Return the folder of a task that ``grpo-verl-ext prepare`` makes; None for another training."""
    task = usage.own_task(config)
    return task.folder if task is not None and task.name in prepared.TASKS else None


def _check_task(config: DictConfig) -> None:
    """Refuse a task that ``grpo-verl-ext prepare`` makes and that is not prepared or not complete."""
    if (folder := _prepared_folder(config)) is not None:
        try:
            prepared.place(folder).check()
        except folders.PreparedFolderError as error:
            raise SettingError("task.folder", folder, seen=str(error)) from error


def _trained_by(config: DictConfig) -> dict[str, str]:
    """Return what tells the checkpoints of one training from another's: preset, its values, and data."""
    preset = str(setting(config, PRESET))
    own = PRESETS[preset].leaves if preset in PRESETS else {}
    said = {key: as_typed(setting(config, key)) for key in (PRESET, ESTIMATOR, LOSS, *own)}
    files = [Path(os.path.expanduser(name)) for name in _names(config, "data.train_files")]
    return said | {"data.train_files": ", ".join(sha256_here(each) or str(each) for each in files)}


def note_training(config: DictConfig) -> None:
    """Write beside the checkpoints of a training what they are trained by, for `_check_folder`."""
    folder = Path(str(setting(config, _FOLDER)))
    if is_count(setting(config, "trainer.save_freq")) and not setting(config, "trainer.val_only"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / _NOTE, json.dumps(_trained_by(config), indent=1))
        except OSError as error:
            say(f"warning: another training in {folder} would go unnoticed: {error}")


def _check_folder(config: DictConfig) -> None:
    """Refuse to go on from the checkpoints of another training; verl would take over its weights and Adam."""
    folder = Path(str(setting(config, _FOLDER)))
    try:
        check_folder(folder)
    except NotADirectoryError as error:
        why, fix = "it is a file, or in one", Line(f"{_FOLDER}=<another folder>")
        raise SettingError(_FOLDER, str(folder), why=why, valid="a folder", fix=fix) from error
    is_resumed = setting(config, "trainer.resume_mode") == "auto"
    if not is_resumed or not (folder / "latest_checkpointed_iteration.txt").is_file():
        return
    try:
        was = read_if_there(folder / _NOTE, dict[str, str], ValueError, "what a training was begun with")
    except ValueError as error:
        raise SettingError(_FOLDER, str(folder), seen=str(error)) from error
    now = _trained_by(config) if was else {}
    for key, value in (was or {}).items():
        if value != now.get(key):
            why = f"its checkpoints are another training's: {key} was {value}, and is {now.get(key)} here"
            onward = f", or to go on from there: ++{SECTION}.silence=[folder]"
            fix = Line(f"{_FOLDER}=<another folder>", more=onward)
            raise SettingError(_FOLDER, str(folder), why=why, fix=fix)


def _advise_files(config: DictConfig) -> Iterator[Problem]:
    """Warn of data, model and reward function that are missing or unreadable on this machine."""
    of_task = _prepared_folder(config)  # of which `_check_task` speaks
    key, mode = "trainer.resume_from_path", setting(config, "trainer.resume_mode")
    if (path := setting(config, key)) and mode in ("auto", "disable"):
        why = f"verl does not read it with trainer.resume_mode={mode}"
        yield Problem(key, path, Line("trainer.resume_mode=resume_path"), why)
    is_own = (config.data.get("custom_cls") or {}).get("path")
    files = [] if is_own else ["data.train_files", "data.val_files"]
    for key in (*files, "reward.custom_reward_function.path", MODEL):
        for name in _names(config, key):
            if of_task is not None and name.startswith(f"{of_task}/"):
                continue
            path = Path(os.path.expanduser(name))
            is_file = name.endswith((".parquet", ".json", ".jsonl", ".py")) and "://" not in name
            # unlike a model on a hub, or a module
            if (name.startswith(("/", "~", "./", "../")) or is_file) and not path.exists():
                why = "that is not on this machine, which is wrong unless the workers see it"
                yield Problem(key, name, f"{key}=<a path that exists>", why)
            if key.startswith("data.") and path.suffix == ".parquet" and path.is_file():
                try:
                    pyarrow.parquet.read_metadata(path)
                except (pyarrow.ArrowException, OSError) as error:
                    why = f"that is not a readable parquet file ({error}); it was left in place"
                    fix = f"{key}=<another file>, or the same command when you have made it again"
                    yield Problem(key, str(path), fix, why)
            if key != MODEL or not (path / "config.json").is_file():
                continue
            try:
                read_config(path)
            except SettingError as error:
                yield error.problem


def _advise_rows(config: DictConfig) -> Iterator[Problem]:
    """Warn of data with fewer prompts than a step takes, and without columns that verl reads in each row."""
    manager, prompt = config.reward.reward_manager, str(setting(config, "data.prompt_key"))
    is_verls = manager.source == "register" and manager.name != REWARD_MANAGER
    of_reward = ("data_source", "reward_model") if is_verls and not asks_model_alone(config) else ()
    is_own = (config.data.get("custom_cls") or {}).get("path")
    for key in ("data.train_files", "data.val_files"):
        files, rows = [Path(os.path.expanduser(each)) for each in _names(config, key)], 0
        if is_own or any(each.suffix != ".parquet" or not each.is_file() for each in files):
            continue
        for file in files:
            try:
                metadata = pyarrow.parquet.read_metadata(file)
            except (pyarrow.ArrowException, OSError):  # of which `_advise_files` speaks
                return
            rows, schema = rows + metadata.num_rows, metadata.schema.to_arrow_schema()
            valid = f"a file with {', '.join((prompt, *of_reward))}; it has {', '.join(schema.names)}"
            for missing in (each for each in (prompt, *of_reward) if each not in schema.names):
                fix = "data.prompt_key=<one of its columns>" if missing == prompt else f"{key}=<another file>"
                yield Problem(key, str(file), fix, f"verl reads a column {missing} in every row", valid)
            if prompt in schema.names and not pyarrow.types.is_list(schema.field(prompt).type):
                kind = schema.field(prompt).type
                why = f"its column {prompt} has {kind}, and verl leaves out each row whose prompt is no list"
                valid = '[{"role": "user", "content": "…"}] in each row'
                yield Problem(key, str(file), f"{key}=<another file>", why, valid)
        wanted, most = setting(config, "data.train_batch_size"), setting(config, "data.train_max_samples", -1)
        rows = min(rows, most) if most > 0 else rows
        if key == "data.train_files" and files and is_count(wanted) and rows < wanted:
            why, fix = f"it has {rows} prompts, and a step takes {wanted}", f"data.train_batch_size={rows}"
            yield Problem(key, ", ".join(map(str, files)), fix if rows else f"{key}=<another file>", why)


def _names(config: DictConfig, key: str) -> list[str]:
    """Return the names of files of a key that has one or several."""
    names = setting(config, key) or []
    return [names] if isinstance(names, str) else [*map(str, names)]


def _check_device(config: DictConfig) -> None:
    """Refuse ``+platform=cpu`` or ``trainer.device`` that contradicts ``VERL_PLATFORM``."""
    device, chosen = config.trainer.device, chosen_platform()
    why, valid = f"the environment has {PLATFORM_VARIABLE}={chosen}", "one platform"
    if OmegaConf.select(config, usage.PLATFORM_KEY) == "cpu" and chosen not in ("", "cpu"):
        fix = f"unset {PLATFORM_VARIABLE}, or leave out +platform=cpu"
        seen = "+platform=cpu is given"
        raise SettingError(usage.PLATFORM_KEY, "cpu", seen=seen, why=why, valid=valid, fix=fix)
    if device != "cpu" and chosen == "cpu":
        fix = f"+platform=cpu, or unset {PLATFORM_VARIABLE}"
        raise SettingError("trainer.device", device, why=why, valid=valid, fix=fix)


def _advise_packages(config: DictConfig) -> Iterator[Problem]:
    """Warn of loggers that verl does not know, and of packages that are missing here."""
    yield from _advise_loggers(config)
    if setting(config, "trainer.use_v1") and (missing := queue_missing()):
        yield missing
    key, name, on_cpu = f"{ROLLOUT}.name", config.actor_rollout_ref.rollout.name, usage.asks_for_cpu(config)
    if name == "vllm" and importlib.util.find_spec("vllm") is None:
        fix = "pip install '.[cpu]', in a checkout of grpo_verl_ext" if on_cpu else "pip install vllm"
        yield Problem(key, "vllm", why="vLLM is not installed here", fix=fix)
    elif name == "vllm" and on_cpu and shutil.which(os.environ.get("CXX", "g++")) is None:
        why = "vLLM's CPU build compiles when it starts, and there is no C++ compiler here"
        yield Problem(key, "vllm", why=why, fix="apt-get install g++, or CXX=<one> in front of the command")


def _advise_loggers(config: DictConfig) -> Iterator[Problem]:
    """Warn of loggers that verl's ``Tracking`` refuses, and of those without their package here."""
    from verl.utils.tracking import Tracking

    valid = [*dict.fromkeys([*Tracking.supported_backend, *_TRACKERS])]
    given = config.trainer.get("logger") or []
    names = [given] if isinstance(given, str) else [*map(str, given)]
    for name in names:
        others, package = [each for each in names if each != name], _TRACKERS.get(name)
        fix = f"{_LOGGER}=[{','.join(others or ['console'])}]"
        if name not in valid:
            near = next(iter(get_close_matches(name, valid, n=1)), "console")
            why, fix = f"verl has no logger {name}", Line(f"{_LOGGER}=[{','.join([*others, near])}]")
        elif package is not None and importlib.util.find_spec(package) is None:
            why, fix = f"{package} is not installed here", f"pip install {package}, or {fix}"
        else:
            continue
        seen = f"{_LOGGER}=[{','.join(names)}]"
        yield Problem(_LOGGER, names, fix, why, valid if name not in valid else "", seen)


ENVIRONMENT = Feature(
    checks={"device": _check_device, "task": _check_task, "folder": _check_folder},
    advice={
        "files": _advise_files,
        "rows": _advise_rows,
        "packages": _advise_packages,
    },
)
