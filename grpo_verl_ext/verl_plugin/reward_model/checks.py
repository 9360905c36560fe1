"""What can be known about a reward model before Ray starts."""

from omegaconf import DictConfig

from grpo_verl_ext.typed_json import is_a
from grpo_verl_ext.verl_plugin.findings import SettingError
from grpo_verl_ext.verl_plugin.model_folder import local_folder, read_config
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
        _check_classifier(f"{section}.path", settings.path)
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


def _check_classifier(key: str, name: str) -> None:
    folder = local_folder(name)
    if folder is None:
        return
    remedy = f"Type: {key}=<folder of a sequence classifier with one output>"
    config = read_config(folder, key=key, remedy=remedy)
    architectures = config.get("architectures") or ["none"]
    if not is_a(architectures, list[str]):
        raise SettingError(
            f"{folder}/config.json: architectures is {architectures!r}; valid is a list of names. {remedy}",
            key=key,
        )
    if not architectures[0].endswith("ForSequenceClassification"):
        raise SettingError(
            f"{key} is {name}, whose architecture is {architectures[0]}, no classifier. {remedy}",
            key=key,
        )
