"""Print the findings of `doctor` on the terminal or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict

from omegaconf import OmegaConf
from ray.exceptions import RayError
from rich.table import Table

from grpo_verl_ext.doctor.environment import (
    Seen,
    Version,
    python_version,
    seen_by_a_worker,
    seen_here,
    versions_beside_tested,
)
from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.utils.errors import Finding, Severity
from grpo_verl_ext.utils.which_ray import which_ray
from grpo_verl_ext.verl_plugin.preflight.environment import queue_missing
from grpo_verl_ext.verl_plugin.usage import is_own_module

_CLEAN, _WARNED, WRONG = 0, 1, 2


def examine_configuration(overrides: Sequence[str], *, as_json: bool, **options: str) -> int:
    """Print the problems of a training's command line and return the exit status.

    Args:
        overrides: key=value.
        as_json: print JSON.
        options: ``config_path`` and ``config_name``, if given.
    """
    with redirect_stdout(sys.stderr):  # verl prints while it is imported and while it validates
        from grpo_verl_ext.doctor.configuration import findings

        found = list(findings(overrides, **options))
    if as_json:
        print(json.dumps({"findings": [_plain(each) for each in found]}, indent=2))
    else:
        _print_findings(found)
    return _status(found)


def examine_environment(as_json: bool) -> int:
    """Print the versions and what this process and a Ray worker see, and return the exit status."""
    with redirect_stdout(sys.stderr):
        here = seen_here()
        worker, trouble = _asked_worker()
    complaints = [each for each in (trouble, _differences(here, worker), _queue()) if each]
    if as_json:
        content = {
            "python": python_version(),
            "ray": which_ray().words,
            "versions": [asdict(each) for each in versions_beside_tested()],
            "here": asdict(here),
            "worker": asdict(worker) if worker else None,
            "complaints": complaints,
        }
        print(json.dumps(content, indent=2))
    else:
        _print_environment(here, worker, complaints)
    return WRONG if complaints else _CLEAN


def _asked_worker() -> tuple[Seen | None, str | None]:
    try:
        return seen_by_a_worker(), None
    except (RayError, TimeoutError, OSError, RuntimeError, ValueError) as error:
        return None, f"a Ray worker could not be asked: {error}"


def _differences(here: Seen, worker: Seen | None) -> str | None:
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


def _queue() -> str | None:
    missing = queue_missing()
    return f"{missing.why}. Type: {missing.fix}" if missing else None


def _plain(finding: Finding) -> dict[str, object]:
    problem, value = finding.problem, finding.problem.value
    return {
        "check": finding.check,
        "severity": finding.severity.value,
        "key": problem.key,
        "value": OmegaConf.to_container(value) if OmegaConf.is_config(value) else value,
        "valid": problem.valid or None,
        "why": problem.reason,
        "type": problem.fix or None,
    }


def _status(found: Sequence[Finding]) -> int:
    if any(each.severity is Severity.ERROR for each in found):
        return WRONG
    return _WARNED if found else _CLEAN


def _print_findings(found: Sequence[Finding]) -> None:
    console = make_console()
    for each in found:
        style = "bold red" if each.severity is Severity.ERROR else "bold yellow"
        console.print(f"{each.severity.value} {each.check}", style=style, markup=False)
        console.print(f"  {each.problem.reason}", markup=False)
        if each.problem.fix:
            console.print(f"  type: {each.problem.fix}", markup=False)
    console.print(f"findings: {len(found)}", markup=False)


def _print_environment(here: Seen, worker: Seen | None, complaints: Sequence[str]) -> None:
    console = make_console()
    print_table(console, _version_table(versions_beside_tested()))
    console.print(f"python {python_version()}; verl's platform: {here.platform}", markup=False)
    console.print(which_ray().words, markup=False)
    where = "here and in a Ray worker" if worker == here else "here"
    console.print(f"estimators and losses that verl finds {where} (ours: *):", markup=False)
    for kind, owners in (("estimators", here.estimators), ("losses", here.losses)):
        names = ", ".join(name + "*" * is_own_module(owner) for name, owner in sorted(owners.items()))
        console.print(f"  {kind}: {names}", markup=False)
    for complaint in complaints:
        console.print(complaint, style="bold red", markup=False)


def _version_table(found: Sequence[Version]) -> Table:
    table = Table(title="versions", title_justify="left")
    for name in ("package", "here", "tests run with"):
        table.add_column(name)
    for each in found:
        table.add_row(each.name, each.found or "not installed", each.tested)
    return table
