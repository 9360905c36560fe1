"""What can be known about a reward model before Ray starts."""

from omegaconf import DictConfig

from grpo_verl_ext.utils.typed_json import is_a
from grpo_verl_ext.verl_plugin.errors import SettingError
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
                "reward.reward_manager.name",
                manager,
                why=f"{section} is set, and this manager asks no reward model",
                valid=MANAGER,
                fix=f"reward.reward_manager.name={MANAGER}",
            )
        return
    settings = RewardModelSettings.from_config(config.algorithm)
    server = config.reward.reward_model
    if settings.path is not None:
        _check_classifier(f"{section}.path", settings.path)
    elif not server.enable:
        raise SettingError(
            "reward.reward_manager.name",
            MANAGER,
            why=f"there is no reward model: {section}.path is null and reward.reward_model.enable is false",
            fix=f"+{section}.path=<folder of a reward model>",
        )
    elif config.reward.custom_reward_function.path is None:
        raise SettingError(
            "reward.custom_reward_function.path",
            None,
            why=f"with reward.reward_model.enable verl then asks the reward model itself and never calls "
            f"reward.reward_manager.name={MANAGER}",
            valid="a file or module with your rules, or verl's own rules",
            fix="reward.custom_reward_function.path=pkg://verl.utils.reward_score "
            "reward.custom_reward_function.name=default_compute_score",
        )


def _check_classifier(key: str, name: str) -> None:
    folder = local_folder(name)
    if folder is None:
        return
    fix = f"{key}=<folder of a sequence classifier with one output>"
    config = read_config(folder, key=key, fix=fix)
    architectures = config.get("architectures") or ["none"]
    if not is_a(architectures, list[str]):
        why = f"architectures in its config.json is {architectures!r}"
        raise SettingError(key, name, why=why, valid="a model with a list of names there", fix=fix)
    if not architectures[0].endswith("ForSequenceClassification"):
        why = f"its architecture is {architectures[0]}, not a classifier"
        raise SettingError(key, name, why=why, fix=fix)
