"""Check that the environment has the platform and the packages that a configuration needs."""

import importlib.metadata
import importlib.util
import os
import platform as host
from collections.abc import Iterator

import torch
from omegaconf import DictConfig, OmegaConf
from packaging.version import Version

from grpo_verl_ext.verl_plugin import usage
from grpo_verl_ext.verl_plugin.cpu.patches import CPU_BUILD, is_installed
from grpo_verl_ext.verl_plugin.cpu.platform import VARIABLE, VLLM_ENVIRONMENT, chosen_platform
from grpo_verl_ext.verl_plugin.errors import Problem, SettingError
from grpo_verl_ext.verl_plugin.versions import queue_missing

TRL_WITHOUT_VALUE_HEAD = Version("1.13")


def check_device(config: DictConfig) -> None:
    """Refuse ``+platform=cpu`` or ``trainer.device`` that contradicts ``VERL_PLATFORM``."""
    device, chosen = config.trainer.device, chosen_platform()
    if OmegaConf.select(config, usage.PLATFORM_KEY) == "cpu" and chosen not in ("", "cpu"):
        raise SettingError(
            usage.PLATFORM_KEY,
            "cpu",
            seen="+platform=cpu is given",
            why=f"the environment has {VARIABLE}={chosen}",
            valid="one platform",
            fix=f"unset {VARIABLE}, or leave out +platform=cpu",
        )
    if device != "cpu" and chosen == "cpu":
        raise SettingError(
            "trainer.device",
            device,
            why=f"the environment has {VARIABLE}=cpu",
            valid="one platform",
            fix=f"+platform=cpu, or unset {VARIABLE}",
        )


def advise_packages(config: DictConfig) -> Iterator[Problem]:
    """Warn of packages that verl needs for this configuration and this environment lacks."""
    yield from _vllm(config)
    if config.trainer.use_v1 and (missing := queue_missing()):
        yield missing
    yield from _trl(config)


def _vllm(config: DictConfig) -> Iterator[Problem]:
    key = "actor_rollout_ref.rollout.name"
    if config.actor_rollout_ref.rollout.name != "vllm":
        return
    if importlib.util.find_spec("vllm") is None:
        package = "'grpo-verl-ext[cpu]'" if usage.asks_for_cpu(config) else "vllm"
        yield Problem(key, "vllm", why="vLLM is not installed here", fix=f"pip install {package}")
    elif not usage.asks_for_cpu(config) and dies_unasked():
        yield Problem(
            key,
            "vllm",
            why=f"vLLM is {CPU_BUILD} here, which verl finds only on the CPU platform (else it says: vllm "
            "version None not supported); where something else answers for the name vllm, its processes die "
            "of SIGILL (Illegal instruction), for this processor has no AVX-512",
            fix=f"+platform=cpu, or {VARIABLE}=nvidia in front of the command if it is for another machine",
        )


def dies_unasked() -> bool:
    """Whether vLLM's CPU build would take kernels that this x86 processor does not have.

    They are for AVX-512, and vLLM takes them where nothing chooses its CPU platform. A platform that is named
    means that the training is for such a machine.
    """
    nothing_chosen = not chosen_platform() and not VLLM_ENVIRONMENT.items() <= os.environ.items()
    lacks_avx512 = host.machine() == "x86_64" and not torch.cpu._is_avx512_supported()
    return nothing_chosen and lacks_avx512 and is_installed(CPU_BUILD)


def _trl(config: DictConfig) -> Iterator[Problem]:
    """Warn of trl ≥ 1.13, which lacks the value head that verl's FSDP engine imports."""
    key = "actor_rollout_ref.actor.strategy"
    if config.actor_rollout_ref.actor.strategy not in ("fsdp", "fsdp2") or not importlib.util.find_spec(
        "trl"
    ):
        return
    version = importlib.metadata.version("trl")
    if Version(version) >= TRL_WITHOUT_VALUE_HEAD:
        yield Problem(
            key,
            config.actor_rollout_ref.actor.strategy,
            seen=f"trl {version} is installed, and verl's FSDP engine imports "
            f"AutoModelForCausalLMWithValueHead from it, which trl {TRL_WITHOUT_VALUE_HEAD} removed",
            fix=f"pip install 'trl<{TRL_WITHOUT_VALUE_HEAD}'",
        )
