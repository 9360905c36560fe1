"""Compose verl's configuration from a command line, without starting anything."""

import importlib.util
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.verl_plugin.errors import Problem
from grpo_verl_ext.verl_plugin.registration import register

CONFIG_PATH, CONFIG_NAME = "config", "ppo_trainer"
"""The configuration that ``main_ppo`` composes by default."""
PACKAGE = "pkg://"


class CompositionError(ValueError):
    """verl would refuse the command line."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


def composed(
    overrides: Sequence[str], *, config_path: str = CONFIG_PATH, config_name: str = CONFIG_NAME
) -> DictConfig:
    """Return the configuration with which ``python -m verl.trainer.main_ppo OVERRIDES`` would train.

    Args:
        overrides: key=value, as Hydra takes them.
        config_path: Hydra's ``--config-path``: a folder, relative to ``main_ppo``'s, or ``pkg://MODULE``.
        config_name: Hydra's ``--config-name``: a file in it, with or without ``.yaml``.

    Raises:
        CompositionError: no such configuration, an unknown preset or key, or a line that is not an override.
    """
    register()
    try:
        with _hydra_at(config_path):
            try:
                config: DictConfig = compose(config_name, overrides=[*overrides])
            except MissingConfigException as error:
                if error.options is None:  # the main file is missing, not a preset
                    raise _no_such_training(config_path, config_name) from error
                raise _no_such_preset(str(error.missing_cfg_file), error.options) from error
            if "actor_rollout_ref" not in config:
                raise _no_such_training(config_path, config_name)
            return config
    except (HydraException, OmegaConfBaseException) as error:
        raise CompositionError(Problem("", None, seen=str(error))) from error


def _hydra_at(config_path: str) -> AbstractContextManager[None]:
    """Initialize Hydra with the search path that ``main_ppo`` would give it."""
    initialized: AbstractContextManager[None]
    if config_path.startswith(PACKAGE):
        module = config_path.removeprefix(PACKAGE).strip("/").replace("/", ".")
        initialized = initialize_config_module(module, version_base=None)
    else:
        initialized = initialize_config_dir(os.path.normpath(_folder(config_path)), version_base=None)
    return initialized


def _folder(config_path: str) -> Path:
    main_ppo = importlib.util.find_spec("verl.trainer.main_ppo")
    assert main_ppo is not None
    assert main_ppo.origin is not None
    return Path(main_ppo.origin).parent / config_path  # an absolute one stays as it is


def _no_such_preset(missing: str, valid: Sequence[str]) -> CompositionError:
    group, _, name = missing.rpartition("/")
    nearest = next(iter(get_close_matches(name, valid, n=1)), valid[0])
    return CompositionError(Problem(f"+{group}", name, valid=valid, fix=f"+{group}={nearest}"))


def _no_such_training(config_path: str, config_name: str) -> CompositionError:
    """Return the error for a wrong path or name; Hydra must be initialized, as it knows the valid names."""
    names = GlobalHydra.instance().config_loader().get_group_options("", ObjectType.CONFIG)
    valid = [name for name in names if not name.startswith("_")]
    if valid:
        path = "" if CONFIG_NAME in valid else f"--config-path={CONFIG_PATH} "
        return CompositionError(
            Problem(
                "--config-name",
                config_name,
                valid=f"the configuration of a training in --config-path={config_path}, which has "
                f"{', '.join(valid)}",
                fix=f"{path}--config-name={CONFIG_NAME}",
            )
        )
    where = config_path if config_path.startswith(PACKAGE) else os.path.normpath(_folder(config_path))
    return CompositionError(
        Problem(
            "--config-path",
            config_path,
            why=f"{where} has no configuration",
            valid=f"a folder, absolute or seen from that of verl's main_ppo, or {PACKAGE}MODULE",
            fix=f"--config-path={CONFIG_PATH}",
        )
    )
