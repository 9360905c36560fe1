"""Register everything the package adds to verl, once per process; registering twice is harmless."""

from collections.abc import Callable, Mapping, MutableMapping
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from packaging.version import Version
from wrapt import register_post_import_hook

VERL_FROM, VERL_BELOW = "0.9", "0.10"


class UnsupportedVerlError(ImportError):
    """verl is missing, or its version has other hooks than those the plugin was written for."""


class NameTakenError(ValueError):
    """Another package already registered a function under one of our names."""


def register() -> None:
    """Put estimators, losses and presets into verl, and the CPU platform where no accelerator is present.

    Raises:
        UnsupportedVerlError: verl is missing or outside ``[0.9, 0.10)``.
        NameTakenError: a foreign function owns one of our names; the message names the owner.
    """
    require_supported_verl()

    from grpo_verl_ext.verl_plugin import search_path
    from grpo_verl_ext.verl_plugin.cpu.detection import is_cpu_chosen

    search_path.install()
    if is_cpu_chosen():
        from grpo_verl_ext.verl_plugin import cpu

        cpu.install()
    # verl's registries live in a module that costs a second to import: enter them when verl imports it.
    register_post_import_hook(_register_algorithms, "verl.trainer.ppo.core_algos")


def require_supported_verl() -> None:
    """Refuse a verl whose plugin hooks differ, with the line that installs a supported one."""
    remedy = f"Type: pip install 'verl>={VERL_FROM},<{VERL_BELOW}'"
    try:
        found = Version(version("verl"))
    except PackageNotFoundError as error:
        raise UnsupportedVerlError(f"verl is not installed. {remedy}") from error
    if not Version(VERL_FROM) <= found < Version(VERL_BELOW):
        raise UnsupportedVerlError(
            f"verl {found} is installed; grpo_verl_ext works with verl >= {VERL_FROM} and < {VERL_BELOW}. "
            f"{remedy}"
        )


def claim(registry: MutableMapping[str, Any], functions: Mapping[str, Callable[..., Any]], kind: str) -> None:
    """Enter ``functions`` into one of verl's registries; all of them, or none when a name is taken.

    verl overwrites a policy loss of the same name without a word, hence the check here.

    Raises:
        NameTakenError: a name belongs to somebody else's function.
    """
    for name, function in functions.items():
        owner = registry.get(name, function)
        if _identity(owner) != _identity(function):
            raise NameTakenError(
                f"the {kind} '{name}' is already registered by {'.'.join(_identity(owner))}. "
                f"Unregister it, or load only one of the two packages: "
                f"VERL_USE_EXTERNAL_PLUGINS=<comma-separated plugin names>."
            )
    registry.update(functions)


def _identity(function: Callable[..., Any]) -> tuple[str, str]:
    """Where a function comes from; equal for two imports of the same source."""
    kind = type(function)
    return (
        getattr(function, "__module__", kind.__module__),
        getattr(function, "__qualname__", kind.__qualname__),
    )


def _register_algorithms(core_algos: ModuleType) -> None:
    from grpo_verl_ext.verl_plugin import estimators, losses

    claim(core_algos.ADV_ESTIMATOR_REGISTRY, estimators.ESTIMATORS, "advantage estimator")
    claim(core_algos.POLICY_LOSS_REGISTRY, losses.LOSSES, "policy loss")
