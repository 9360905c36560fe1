"""Compose verl's configuration from a command line, without starting anything."""

import os
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import verl
from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.catalogue import check_one_preset
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import SECTION, key_of, setting
from grpo_verl_ext.verl_plugin.config import options_model
from grpo_verl_ext.verl_plugin.registration import register

CONFIG_PATH, CONFIG_NAME = "config", "ppo_trainer"
"""The configuration that ``main_ppo`` composes by default."""
_IN_PACKAGE = "pkg://"
"""Begins a configuration path in a package."""
# Hydra's messages for a key that the configuration lacks, and for a ``+`` in front of one that it has.
_UNKNOWN_KEY = re.compile(r"Could not override '(?P<key>[^']+)'")
_PRESENT_KEY = re.compile(r"Could not append to config\. An item is already at '(?P<key>[^']+)'")
_parsed: dict[tuple[str, str], bytes] = {}
"""Folder in a package and file → what Hydra read, pickled, for each composition changes its copy."""


def composed(
    overrides: Sequence[str], *, config_path: str = CONFIG_PATH, config_name: str = CONFIG_NAME
) -> DictConfig:
    """Return the configuration with which ``python -m verl.trainer.main_ppo OVERRIDES`` would train.

    ``config_path`` and ``config_name`` are Hydra's options: a folder, absolute or relative to that of
    ``main_ppo``, or ``pkg://MODULE``, and a file in it. Whatever verl would refuse is a SettingError.
    """
    register()
    try:
        with _hydra_at(config_path):
            try:
                config: DictConfig = compose(config_name, overrides=[*overrides])
            except MissingConfigException as error:
                if error.options is None:  # the main file is missing, not a preset
                    raise _no_such_training(config_path, config_name) from error
                group, _, name = str(error.missing_cfg_file).rpartition("/")
                near = get_close_matches(name.lower().replace("-", "_"), error.options, n=1)
                fix = Line(f"+{group}={near[0]}") if near else f"+{group}=<one of them>"
                raise SettingError(f"+{group}", name, valid=error.options, fix=fix) from error
            if "actor_rollout_ref" not in config:
                raise _no_such_training(config_path, config_name)
            is_verls = config_path == CONFIG_PATH and "hydra.searchpath" not in map(key_of, overrides)
            preset = setting(config, f"{SECTION}.preset")
            check_one_preset(overrides, config_name, preset, is_verls=is_verls)
            return config
    except (HydraException, OmegaConfBaseException) as error:
        if unknown := _UNKNOWN_KEY.search(str(error)):
            known, typed = _split(overrides, unknown["key"])
            config = composed(known, config_path=config_path, config_name=config_name)
            raise _no_such_key(config, unknown["key"], typed) from error
        if present := _PRESENT_KEY.search(str(error)):
            key, (_, value) = present["key"], _split(overrides, f"+{present['key']}")
            seen = f"verl refuses the command line: +{key}={value}, but verl or a preset has this key already"
            fix = Line(f"{key}={value}", without=(key,))
            raise SettingError(key, value, seen=seen, fix=fix) from error
        raise SettingError("", None, seen=str(error)) from error


def _split(overrides: Sequence[str], key: str) -> tuple[list[str], str]:
    """Return the overrides without those of a key, and the value that the last one gives it."""
    mine = [word for word in overrides if word.partition("=")[0] == key]
    return [word for word in overrides if word not in mine], [key, *mine][-1].partition("=")[2]


def _no_such_key(config: DictConfig, key: str, value: str) -> SettingError:
    said = f"verl refuses the command line: {key}={value}, but"
    if key in options_model().all_keys(f"{SECTION}."):
        seen = f"{said} nothing before it sets this key, and a new one needs a +"
        return SettingError(key, value, seen=seen, fix=Line(f"+{key}={value}", without=(key,)))
    seen = f"{said} neither verl nor a preset has this key"
    near = nearest_line(config, key, value)
    line = Line(near, without=(key,)) if near else f"+{key}={value} if some code of yours reads it"
    return SettingError(key, value, seen=seen, fix=line)


def nearest_line(config: DictConfig, key: str, value: object) -> str:
    """Return the override that sets the key which was probably meant; empty where none is near.

    That is a key of the same name in a section below, one of a similar name in the same section, or one of
    the same name in a section of a similar name.
    """
    section, _, name = key.rpartition(".")
    content: Any = OmegaConf.to_container(config, resolve=False)
    keys = [each for each, _ in leaves(content)]
    below = [each for each in keys if each.startswith(f"{section}.") and each.endswith(f".{name}")]
    beside = [
        each
        for each in (*keys, *options_model().all_keys(f"{SECTION}."))
        if each.rpartition(".")[0] == section and each != key
    ]
    names = get_close_matches(name, [each.rpartition(".")[2] for each in beside], n=1, cutoff=0.75)
    alike = get_close_matches(key, [each for each in keys if each.endswith(f".{name}")], n=1, cutoff=0.9)
    near = [each for each in below if each != key] or [f"{section}.{each}" for each in names] or alike
    return f"{'' if near[0] in keys else '++'}{near[0]}={value}" if near else ""


@contextmanager
def _hydra_at(config_path: str) -> Iterator[None]:
    """Initialize Hydra with the search path that ``main_ppo`` would give it."""
    where = "pkg://verl.trainer.config" if config_path == CONFIG_PATH else config_path
    initialized: AbstractContextManager[None]
    if where.startswith(_IN_PACKAGE):
        module = where.removeprefix(_IN_PACKAGE).strip("/").replace("/", ".")
        initialized = initialize_config_module(module, version_base=None)
    else:
        initialized = initialize_config_dir(folder_of(where), version_base=None)
    with initialized:
        for source in GlobalHydra.instance().config_loader().get_sources():
            if source.scheme() == "pkg":
                source.load_config = partial(_read_once, source.path, source.load_config)
        yield


def _read_once(folder: str, read: Callable[[str], ConfigResult], config_path: str) -> ConfigResult:
    """Parse a package's file once, which takes half of a composition's time."""
    if (folder, config_path) not in _parsed:
        _parsed[folder, config_path] = pickle.dumps(read(config_path))
    return pickle.loads(_parsed[folder, config_path])


def folder_of(config_path: str) -> str:
    """Return the folder of Hydra's ``--config-path``, which may be relative to that of ``main_ppo``.

    A path in a package, ``pkg://MODULE``, stays as it is.
    """
    if config_path.startswith(_IN_PACKAGE):
        return config_path
    return os.path.normpath(Path(verl.__file__).parent / "trainer" / config_path)  # an absolute one stays


def _no_such_training(config_path: str, config_name: str) -> SettingError:
    """Return the error of a wrong path or name; Hydra must be initialized, as it knows the valid names."""
    names = GlobalHydra.instance().config_loader().get_group_options("", ObjectType.CONFIG)
    if valid := [name for name in names if not name.startswith("_")]:
        path = "" if CONFIG_NAME in valid else f"--config-path={CONFIG_PATH} "
        has = f"the configuration of a training in --config-path={config_path}, which has {', '.join(valid)}"
        fix = f"{path}--config-name={CONFIG_NAME}"
        return SettingError("--config-name", config_name, valid=has, fix=fix)
    return SettingError(
        "--config-path",
        config_path,
        why=f"{folder_of(config_path)} has no configuration",
        valid=f"a folder, absolute or relative to that of verl's main_ppo, or {_IN_PACKAGE}MODULE",
        fix=f"--config-path={CONFIG_PATH}",
    )
