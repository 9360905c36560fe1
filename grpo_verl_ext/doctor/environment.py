"""Print versions, and the plugin as verl sees it here and in a Ray worker."""

import json
import math
import platform as host
import sys
from contextlib import redirect_stdout
from typing import Any

import ray
from rich.table import Table

from grpo_verl_ext.runs.provenance import versions
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.which_ray import which_ray
from grpo_verl_ext.utils.which_verl import INSTALL, which_verl
from grpo_verl_ext.verl_plugin import TESTED, queue_missing
from grpo_verl_ext.verl_plugin.cpu import CPU_BUILD

_OURS = "grpo_verl_ext."
"""Begins the names of the package's modules."""


def examine_environment(as_json: bool) -> int:
    """Print the versions and what this process and a Ray worker see, and return the exit status."""
    worker, trouble = None, None
    with redirect_stdout(sys.stderr):
        here = _seen_here()
        try:
            worker = _seen_by_a_worker()
        except Exception as error:  # noqa: BLE001  # Ray has no class for a node that does not start in time
            trouble = f"a Ray worker could not be asked: {error}"
        gradients, wrong = _gradients()
    queue, verl = queue_missing(), which_verl()
    if not any(owner.startswith(_OURS) for owner in here["estimators"].values()):
        wrong = "verl did not load the plugin in this process. Type: unset VERL_USE_EXTERNAL_PLUGINS, and in "
        wrong += "a checkout, with the Python of verl: pip install ."
    elif worker is not None and worker != here:
        wrong = "a Ray worker sees other estimators, losses or another platform than this process; is the "
        wrong += "package installed in the environment of every node? "
        wrong += "Type there, in a checkout: pip install ."
    missing = f"{queue.why}. Type: {queue.fix}" if queue else None
    installed = versions((*TESTED, CPU_BUILD))
    # vLLM's CPU build is another distribution
    names = [CPU_BUILD if name == "vllm" and CPU_BUILD in installed else name for name in TESTED]
    content: dict[str, Any] = {
        "python": host.python_version(),
        "ray": which_ray().words,
        "verl": verl.words,
        "gradients": gradients,
        "versions": [
            {"name": name, "found": installed.get(name), "tested": TESTED.get(name, TESTED["vllm"])}
            for name in names
        ],
        "here": here,
        "worker": worker,
        "complaints": [each for each in (trouble, wrong, missing) if each],
    }
    if as_json:
        print(json.dumps(content, indent=2))
    else:
        _print_environment(content)
    return 2 if content["complaints"] else 0


def _gradients() -> tuple[str, str]:
    """Return how many presets compute their paper's gradient here, and a complaint about the others."""
    try:
        # which loads the plugin's functions
        from grpo_verl_ext.proof.judge import TOLERANCE, presets_on_this_verl

        away = dict(presets_on_this_verl())
    except (ImportError, AttributeError, OSError) as error:
        return "no gradient was computed", f"verl lacks what computes a gradient ({error}). Type: {INSTALL}"
    others = sorted(name for name, distance in away.items() if distance > TOLERANCE)
    none = sorted(name for name, distance in away.items() if math.isnan(distance))
    number = f"{len(away) - len(others) - len(none)} of {len(away)}"
    said = f"{number} presets compute their paper's gradient on verl {which_verl().version}"
    wrong = f"this verl computes another gradient for {', '.join(others)}. Type: {INSTALL}" * bool(others)
    if none:  # a record of another package, for ours are tested
        wrong = f"{', '.join(none)}: the algorithm's own record has no gradient, or one that is not finite"
        wrong += ". Type: pip uninstall <its package>"
    return said, wrong


def _seen_here() -> dict[str, Any]:
    """Return this process's platform after ``import verl``, and the module of each estimator and loss."""
    import verl  # noqa: F401
    from verl.trainer.ppo import core_algos
    from verl.utils.device import get_device_name

    registries = {"estimators": core_algos.ADV_ESTIMATOR_REGISTRY, "losses": core_algos.POLICY_LOSS_REGISTRY}
    seen: dict[str, Any] = {"platform": str(get_device_name())}
    for kind, registry in registries.items():
        seen[kind] = {
            str(getattr(name, "value", name)): getattr(function, "__module__", type(function).__module__)
            for name, function in registry.items()
        }
    return seen


def _seen_by_a_worker() -> dict[str, Any]:
    """Return the same for a worker of a Ray started for this, or of the cluster in RAY_ADDRESS."""
    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(which_ray().address, **quiet)
    try:  # within three minutes, to start and to import verl
        found: dict[str, Any] = ray.get(ray.remote(num_cpus=0)(_seen_here).remote(), timeout=180)
    finally:
        ray.shutdown()
    return found


def _print_environment(content: dict[str, Any]) -> None:
    console, here = make_console(), content["here"]
    table = Table("package", "here", "tests run with", title="versions", title_justify="left")
    for each in content["versions"]:
        table.add_row(each["name"], each["found"] or "not installed", each["tested"])
    console.print(table, "")
    console.print(f"python {content['python']}; verl's platform: {here['platform']}")
    for name in ("ray", "verl", "gradients"):
        console.print(content[name])
    where = "here and in a Ray worker" if content["worker"] == here else "here"
    console.print(f"estimators and losses that verl finds {where} (ours: *):")
    for kind in ("estimators", "losses"):
        names = ", ".join(name + "*" * owner.startswith(_OURS) for name, owner in sorted(here[kind].items()))
        console.print(f"  {kind}: {names}")
    for complaint in content["complaints"]:
        console.print(complaint, style="bold red")
