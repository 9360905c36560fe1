"""Print versions, and the plugin as verl sees it here and in a Ray worker."""

from __future__ import annotations

import json
import platform as host
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

import ray
from omegaconf import OmegaConf
from ray.exceptions import RayError
from rich.table import Table

from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.utils.which_ray import which_ray
from grpo_verl_ext.utils.which_verl import INSTALL, which_verl
from grpo_verl_ext.verl_plugin import TESTED, queue_missing
from grpo_verl_ext.verl_plugin.cpu.patches import CPU_BUILD
from grpo_verl_ext.verl_plugin.usage import is_own_module

_WORKER_SECONDS = 180
"""Time limit for a Ray worker to start and to import verl."""
_CLEAN, _WARNED, _WRONG = 0, 1, 2


@dataclass(frozen=True)
class _Seen:
    """The platform, estimators and losses of a process after ``import verl``."""

    platform: str
    """verl's name of the device."""
    estimators: dict[str, str]
    """Name → module of the function that verl calls."""
    losses: dict[str, str]


@dataclass(frozen=True)
class _Version:
    """A package whose version can change results."""

    name: str
    found: str | None
    tested: str


def examine_environment(as_json: bool) -> int:
    """Print the versions and what this process and a Ray worker see, and return the exit status."""
    with redirect_stdout(sys.stderr):
        here = seen_here()
        worker, trouble = _asked_worker()
        gradients, other = _gradients()
    verl = which_verl()
    queue = queue_missing()
    missing = f"{queue.why}. Type: {queue.fix}" if queue else None
    differences = _differences(here, worker)
    complaints = [each for each in (trouble, differences or other, missing) if each]
    if as_json:
        content = {
            "python": host.python_version(),
            "ray": which_ray().words,
            "verl": verl.words,
            "gradients": gradients,
            "versions": [asdict(each) for each in versions_beside_tested()],
            "here": asdict(here),
            "worker": asdict(worker) if worker else None,
            "warnings": verl.warnings,
            "complaints": complaints,
        }
        print(json.dumps(content, indent=2))
    else:
        _print_environment(
            here, worker, [which_ray().words, verl.words, gradients], verl.warnings, complaints
        )
    return _WRONG if complaints else _WARNED if verl.warnings else _CLEAN


def _gradients() -> tuple[str, str | None]:
    """Return how many presets compute their paper's gradient here, and a complaint about the others."""
    try:
        # both load the plugin's functions, which a process asked by `seen_here` does not
        from grpo_verl_ext.preflight.values import verls_defaults
        from grpo_verl_ext.proof.judge import TOLERANCE, presets_on

        away = dict(presets_on(OmegaConf.create(verls_defaults())))
    except (ImportError, AttributeError, OSError) as error:
        return "no gradient was computed", f"verl lacks what computes a gradient ({error}). Type: {INSTALL}"
    others = sorted(name for name, distance in away.items() if not distance <= TOLERANCE)
    number = f"{len(away) - len(others)} of {len(away)}"
    said = f"{number} presets compute their paper's gradient on verl {version('verl')}"
    wrong = (
        f"this verl computes another gradient for {', '.join(others)}. Type: {INSTALL}" if others else None
    )
    return said, wrong


def _asked_worker() -> tuple[_Seen | None, str | None]:
    try:
        return seen_by_a_worker(), None
    except (RayError, TimeoutError, OSError, RuntimeError, ValueError) as error:
        return None, f"a Ray worker could not be asked: {error}"


def _differences(here: _Seen, worker: _Seen | None) -> str | None:
    if not any(is_own_module(owner) for owner in here.estimators.values()):
        return (
            "verl did not load the plugin in this process. Type: unset VERL_USE_EXTERNAL_PLUGINS, and in a "
            "checkout, with the Python of verl: pip install ."
        )
    if worker is not None and worker != here:
        return (
            "a Ray worker sees other estimators, losses or another platform than this process; is the "
            "package installed in the environment of every node? Type there, in a checkout: pip install ."
        )
    return None


def versions_beside_tested() -> list[_Version]:
    """Return the installed versions beside those that the tests run with."""
    return [
        _Version(_installed_as(name), _version(_installed_as(name)), tested)
        for name, tested in TESTED.items()
    ]


def seen_here() -> _Seen:
    """Return what this process has after importing verl, which loads its plugins."""
    import verl  # noqa: F401
    from verl.trainer.ppo import core_algos
    from verl.utils.device import get_device_name

    return _Seen(
        str(get_device_name()),
        _owners(core_algos.ADV_ESTIMATOR_REGISTRY),
        _owners(core_algos.POLICY_LOSS_REGISTRY),
    )


def seen_by_a_worker() -> _Seen:
    """Return the same for a worker of a Ray started for this, or of the cluster in RAY_ADDRESS.

    Raises:
        ValueError: ray.init refuses the address.
        RuntimeError: Ray does not start.
        TimeoutError: the worker does not answer.
        ray.exceptions.RayError: the worker fails.
    """
    address = which_ray().address
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, configure_logging=False)
    except Exception as error:
        # Of a node that does not start in 30 seconds Ray raises no class of its own.
        if type(error) is not Exception:
            raise
        raise RuntimeError(str(error)) from error
    try:
        found: _Seen = ray.get(ray.remote(num_cpus=0)(seen_here).remote(), timeout=_WORKER_SECONDS)
    finally:
        ray.shutdown()
    return found


def _owners(registry: Mapping[object, object]) -> dict[str, str]:
    return {
        str(getattr(name, "value", name)): getattr(function, "__module__", type(function).__module__)
        for name, function in registry.items()
    }


def _installed_as(name: str) -> str:
    """Return the name of the distribution; vLLM's CPU build has another one."""
    return CPU_BUILD if name == "vllm" and _version(CPU_BUILD) is not None else name


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _print_environment(
    here: _Seen,
    worker: _Seen | None,
    words: Sequence[str],
    warnings: Sequence[str],
    complaints: Sequence[str],
) -> None:
    console = make_console()
    print_table(console, _version_table(versions_beside_tested()))
    console.print(f"python {host.python_version()}; verl's platform: {here.platform}")
    for each in words:
        console.print(each)
    where = "here and in a Ray worker" if worker == here else "here"
    console.print(f"estimators and losses that verl finds {where} (ours: *):")
    for kind, owners in (("estimators", here.estimators), ("losses", here.losses)):
        names = ", ".join(name + "*" * is_own_module(owner) for name, owner in sorted(owners.items()))
        console.print(f"  {kind}: {names}")
    for warning in warnings:
        console.print(warning, style="bold yellow")
    for complaint in complaints:
        console.print(complaint, style="bold red")


def _version_table(found: Sequence[_Version]) -> Table:
    table = Table(title="versions", title_justify="left")
    for name in ("package", "here", "tests run with"):
        table.add_column(name)
    for each in found:
        table.add_row(each.name, each.found or "not installed", each.tested)
    return table
