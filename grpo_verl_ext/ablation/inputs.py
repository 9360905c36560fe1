"""The files that a training is made from, for its record: models, data, rewards and a user's own modules."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.rewards.functions import file_of, is_function
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.files import module_file, sha256_of_all
from grpo_verl_ext.utils.keys import RUNTIME_ENVIRONMENT, SECTION, setting

STARTS = (
    *("actor_rollout_ref.model.path", "data.train_files", "data.val_files"),
    *("reward.custom_reward_function.path", "reward.reward_model.model_path"),
)
"""Keys of the files that every record has."""
_WEIGHTS = "reward.custom_reward_function.reward_kwargs.weights"
_MODULES = "VERL_USE_EXTERNAL_MODULES"
_LATER_KEYS = (*(f"{SECTION}.gold_responses.files", f"{SECTION}.reward_model.path", "critic.model.path"),)
_LATER_SECTIONS = {"distillation": "model_path"}
"""Section → the key of each model in it."""
_LATER = (*_LATER_KEYS, *_LATER_SECTIONS, _WEIGHTS, _MODULES)
"""Begin the keys that records have only since 27 November 2026."""


def is_later(key: str) -> bool:
    """Whether a record of an earlier version lacks this key."""
    return key.startswith(_LATER)


def inputs_of(config: DictConfig) -> dict[str, str]:
    """Return the SHA-256 of the files that are on this machine, by key.

    A list's second file has the key ``data.train_files[1]``.
    """
    return {key: sha256_of_all(path) for key, path in _files(config) if path.exists()}


def _files(config: DictConfig) -> Iterator[tuple[str, Path]]:
    for key in (*STARTS, *_LATER_KEYS):
        yield from _places(key, setting(config, key))
    for section, last in _LATER_SECTIONS.items():
        models: Any = setting(config, section)
        models = OmegaConf.to_container(models) if OmegaConf.is_dict(models) else {}
        for name, _ in leaves(models):
            if name.endswith(f".{last}"):
                yield from _places(f"{section}.{name}", setting(config, f"{section}.{name}"))
    weights = setting(config, _WEIGHTS)
    for name in weights if isinstance(weights, Mapping) else ():
        if is_function(name) and (file := file_of(name)):
            yield f"{_WEIGHTS}.{name}", file
    modules = setting(config, f"{RUNTIME_ENVIRONMENT}.{_MODULES}") or os.environ.get(_MODULES, "")
    files = [module_file(name.strip()) for name in modules.split(",") if name.strip()]
    yield from _places(_MODULES, [str(file) for file in files if file])


def _places(key: str, named: Any) -> Iterator[tuple[str, Path]]:
    paths = [named] if isinstance(named, str) else named or []
    for place, path in enumerate(paths):
        yield key if place == 0 else f"{key}[{place}]", Path(path).expanduser()
