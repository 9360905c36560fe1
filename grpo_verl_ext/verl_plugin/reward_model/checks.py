"""What can be known about a reward model before Ray starts."""

import json
from pathlib import Path

from omegaconf import DictConfig

from grpo_verl_ext.typed_json import SPOILED, typed
from grpo_verl_ext.verl_plugin.findings import SettingError
from grpo_verl_ext.verl_plugin.options import grpo_ext
from grpo_verl_ext.verl_plugin.reward_model.settings import KEY, MANAGER, RewardModelSettings


def check_reward_model(config: DictConfig) -> None:
    """The manager ``rule_and_model`` needs a model, and a model needs the manager."""
    manager = config.reward.reward_manager.name
    section = f"algorithm.grpo_ext.{KEY}"
    if manager != MANAGER:
        if grpo_ext(config.algorithm).get(KEY) is not None:
            raise SettingError(
                f"{section} is set, but reward.reward_manager.name={manager} asks no reward model; valid is "
                f"{MANAGER}. Type: reward.reward_manager.name={MANAGER}",
                key="reward.reward_manager.name",
            )
        return
    settings = RewardModelSettings.from_config(config.algorithm)
    server = config.reward.reward_model
    if settings.path is not None:
        _check_folder(f"{section}.path", settings.path)
    elif not server.enable:
        raise SettingError(
            f"reward.reward_manager.name={MANAGER} has no reward model: {section}.path is None and "
            f"reward.reward_model.enable is False. Type: +{section}.path=<folder of a reward model>",
            key="reward.reward_manager.name",
        )
    elif config.reward.custom_reward_function.path is None:
        raise SettingError(
            "with reward.reward_model.enable and no reward.custom_reward_function.path verl asks the reward "
            f"model itself and never calls reward.reward_manager.name={MANAGER}. Type for verl's own rules: "
            "reward.custom_reward_function.path=pkg://verl.utils.reward_score "
            "reward.custom_reward_function.name=default_compute_score",
            key="reward.custom_reward_function.path",
        )


def _check_folder(key: str, name: str) -> None:
    folder = Path(name).expanduser()
    if not name.startswith(("/", "~", ".")) and not folder.exists():
        return  # the name of a model on a hub
    config_file = folder / "config.json"
    remedy = f"Type: {key}=<folder of a sequence classifier with one output>"
    if not config_file.is_file():
        raise SettingError(f"{key} is {name}, but there is no {config_file}. {remedy}", key=key)
    try:
        architectures = _architectures(json.loads(config_file.read_bytes()))
    except SPOILED as error:
        raise SettingError(
            f"{config_file} cannot be read ({error}). It was left in place. {remedy}",
            key=key,
        ) from error
    if not architectures[0].endswith("ForSequenceClassification"):
        raise SettingError(
            f"{key} is {name}, whose architecture is {architectures[0]}, no classifier. {remedy}",
            key=key,
        )


def _architectures(content: object) -> list[str]:
    named = typed({"architectures": None} | typed(content, {}), {"architectures": list[str] | None})
    return named["architectures"] or ["none"]
