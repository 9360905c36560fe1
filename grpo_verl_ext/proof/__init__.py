"""Compute what a configuration trains, and which of its values are not those of the preset that it names."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.catalogue import ALGORITHMS, PRESETS, Estimator
from grpo_verl_ext.utils.keys import SECTION, setting
from grpo_verl_ext.verl_plugin.compose import CONFIG_PATH, folder_of


@cache
def verls_defaults() -> DictConfig:
    """Return what verl's ``main_ppo`` composes without an override, from the file that verl keeps of it."""
    file = Path(folder_of(CONFIG_PATH), "_generated_ppo_trainer.yaml")
    content = yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    defaults: DictConfig = OmegaConf.create(content)
    return defaults


def differing(config: DictConfig) -> dict[str, tuple[Any, Any]]:
    """Return key → (the preset's value, the configured one) where they differ; {} without a known preset.

    A value that a preset derives from another key follows what the command says of that key. A preset
    without ``scale_rewards`` has that of its estimator.
    """
    name = str(setting(config, f"{SECTION}.preset"))
    if name not in PRESETS:
        return {}
    own = dict(PRESETS[name].leaves)
    for key, value in own.items():
        if isinstance(value, str) and "${" in value:
            own[key] = OmegaConf.create({"value": value}, parent=config).value
    pairs = {key: (value, setting(config, key)) for key, value in own.items()}
    estimator, scale = ALGORITHMS[name].estimator, f"{SECTION}.scale_rewards"
    if isinstance(estimator, Estimator) and estimator.baseline is None and not estimator.several_rewards:
        pairs.setdefault(scale, ("group", setting(config, scale, "group")))
    return {key: (value, now) for key, (value, now) in pairs.items() if now != value}
