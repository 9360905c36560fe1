"""Check that the environment has the platform, packages and trackers of a configuration."""

import importlib.metadata
import importlib.util
import os
import platform as host
from collections.abc import Iterator
from difflib import get_close_matches

import torch
from omegaconf import DictConfig, OmegaConf
from packaging.version import Version

from grpo_verl_ext.utils.console import line_to_install
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import ROLLOUT, setting
from grpo_verl_ext.utils.which_verl import TESTED, which_verl
from grpo_verl_ext.verl_plugin import queue_missing, usage
from grpo_verl_ext.verl_plugin.cpu import PLATFORM_VARIABLE, VLLM_ENVIRONMENT, chosen_platform
from grpo_verl_ext.verl_plugin.cpu.patches import CPU_BUILD, is_installed

_TRL_WITHOUT_VALUE_HEAD = Version("1.13")

_ROLLOUTS = ("vllm", "sglang", "trtllm")
"""verl's own values of ``rollout.name``; another package may have registered more."""

_LOGGER = "trainer.logger"
TRACKERS = {
    "tracking": "wandb",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "vemlp_wandb": "volcengine_ml_platform",
    "tensorboard": "tensorboard",
    "clearml": "clearml",
    "trackio": "trackio",
    "rl_insight": "rl_insight",
}
"""Values of ``trainer.logger`` → the module that verl's ``Tracking`` imports for them."""


def check_device(config: DictConfig) -> None:
    """Refuse ``+platform=cpu`` or ``trainer.device`` that contradicts ``VERL_PLATFORM``."""
    device, chosen = config.trainer.device, chosen_platform()
    if OmegaConf.select(config, usage.PLATFORM_KEY) == "cpu" and chosen not in ("", "cpu"):
        raise SettingError(
            usage.PLATFORM_KEY,
            "cpu",
            seen="+platform=cpu is given",
            why=f"the environment has {PLATFORM_VARIABLE}={chosen}",
            valid="one platform",
            fix=f"unset {PLATFORM_VARIABLE}, or leave out +platform=cpu",
        )
    if device != "cpu" and chosen == "cpu":
        raise SettingError(
            "trainer.device",
            device,
            why=f"the environment has {PLATFORM_VARIABLE}=cpu",
            valid="one platform",
            fix=f"+platform=cpu, or unset {PLATFORM_VARIABLE}",
        )


def advise_verl(config: DictConfig) -> Iterator[Problem]:  # noqa: ARG001  # an `Advise`
    """Warn of a version of verl before its release, on which nothing was tested."""
    verl = which_verl()
    if verl.is_untested_development:
        yield Problem("", None, seen=verl.words, fix=f"pip install 'verl=={TESTED[-1]}'")


def advise_packages(config: DictConfig) -> Iterator[Problem]:
    """Warn of loggers and rollout engines that verl does not know, and of packages that are missing here."""
    yield from advise_loggers(config)
    if setting(config, "trainer.use_v1") and (missing := queue_missing()):
        yield missing
    strategy, has_trl = config.actor_rollout_ref.actor.strategy, importlib.util.find_spec("trl")
    trl = importlib.metadata.version("trl") if has_trl and strategy in ("fsdp", "fsdp2") else "0"
    if Version(trl) >= _TRL_WITHOUT_VALUE_HEAD:
        yield Problem(
            "actor_rollout_ref.actor.strategy",
            strategy,
            seen=f"trl {trl} is installed, and verl's FSDP engine imports AutoModelForCausalLMWithValueHead "
            f"from it, which trl {_TRL_WITHOUT_VALUE_HEAD} removed",
            fix=f"pip install 'trl<{_TRL_WITHOUT_VALUE_HEAD}'",
        )
    key, name, on_cpu = f"{ROLLOUT}.name", config.actor_rollout_ref.rollout.name, usage.asks_for_cpu(config)
    if name not in _ROLLOUTS:
        from verl.workers.rollout.replica import RolloutReplicaRegistry

        valid = tuple(RolloutReplicaRegistry._registry)
        if name not in valid:
            nearest = next(iter(get_close_matches(str(name), valid, n=1)), "vllm")
            yield Problem(key, name, Line(f"{key}={nearest}"), valid=valid)
    elif name == "vllm" and importlib.util.find_spec("vllm") is None:
        fix = line_to_install("cpu") if on_cpu else "pip install vllm"
        yield Problem(key, "vllm", why="vLLM is not installed here", fix=fix)
    elif name == "vllm" and not on_cpu and _dies_unasked():
        yield Problem(
            key,
            "vllm",
            why=f"vLLM is {CPU_BUILD} here, which verl finds only on the CPU platform (else it says: vllm "
            "version None not supported); where something else answers for the name vllm, its processes die "
            "of SIGILL (Illegal instruction), for this processor has no AVX-512",
            fix=f"+platform=cpu, or {PLATFORM_VARIABLE}=nvidia in front of the command if it is for another "
            "machine",
        )


def _dies_unasked() -> bool:
    """Whether vLLM's CPU build would take kernels that this x86 processor does not have.

    They are for AVX-512, and vLLM takes them where nothing chooses its CPU platform. A platform that is named
    means that the training is for such a machine.
    """
    nothing_chosen = not chosen_platform() and not VLLM_ENVIRONMENT.items() <= os.environ.items()
    lacks_avx512 = host.machine() == "x86_64" and not torch.cpu._is_avx512_supported()
    return nothing_chosen and lacks_avx512 and is_installed(CPU_BUILD)


def advise_loggers(config: DictConfig, *, keys: bool = False) -> Iterator[Problem]:
    """Warn of loggers that verl's ``Tracking`` refuses, and of those without their package here.

    Args:
        keys: also of wandb without a key. One training asks for it; verl's default has wandb.
    """
    given = config.trainer.get("logger") or []
    names = [given] if isinstance(given, str) else [*map(str, given)]
    for name in names:
        others, seen = [each for each in names if each != name], f"{_LOGGER} is {_typed_list(names)}"
        if name not in (valid := known_loggers()):
            near = next(iter(get_close_matches(name, valid, n=1)), "console")
            line = Line(f"{_LOGGER}={_typed_list([*others, near])}")
            yield Problem(_LOGGER, names, line, f"verl has no logger {name}", valid, seen)
        elif lacks := lacking(name, key=keys):
            why, remedy = lacks
            yield Problem(
                _LOGGER, names, f"{remedy}, or {_LOGGER}={_typed_list(others or ['console'])}", why, seen=seen
            )


def known_loggers() -> list[str]:
    """Return the loggers that verl has."""
    from verl.utils.tracking import Tracking

    return [*dict.fromkeys([*Tracking.supported_backend, *TRACKERS])]


def lacking(name: str, *, key: bool = True) -> tuple[str, str] | None:
    """Return what one of verl's loggers lacks on this machine, and what to type; None: nothing.

    Args:
        key: whether to look for its key.
    """
    package = TRACKERS.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"{package} is not installed here", f"pip install {package}"
    if key and package == "wandb" and _wandb_lacks_key():
        return "wandb has no key here", "wandb login, or WANDB_MODE=offline in front of the command"
    return None


def _wandb_lacks_key() -> bool:
    """Whether ``wandb.init`` would ask for a key; nothing is sent."""
    import wandb
    from requests.utils import get_netrc_auth

    settings = wandb.setup().settings
    given = settings.api_key or settings.identity_token_file or get_netrc_auth(settings.base_url)
    return settings.mode == "online" and not given


def _typed_list(names: list[str]) -> str:
    """Return a list as typed on the command line."""
    return f"[{','.join(names)}]"
