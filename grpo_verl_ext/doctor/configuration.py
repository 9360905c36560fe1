"""Find problems in a training's configuration without starting it, and print them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace

from omegaconf import OmegaConf

from grpo_verl_ext.preflight.with_verls import exit_status, findings_with_verls, print_findings
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.errors import Finding, Severity
from grpo_verl_ext.verl_plugin.compose import CONFIG_NAME, CONFIG_PATH, CompositionError, composed


def examine_configuration(overrides: Sequence[str], *, as_json: bool, **options: str) -> int:
    """Print the problems of a training's command line and return the exit status.

    Args:
        overrides: key=value.
        as_json: print JSON.
        options: ``config_path`` and ``config_name``, if given.
    """
    with redirect_stdout(sys.stderr):  # verl prints while it validates
        found = list(all_findings(overrides, **options))
    if as_json:
        print(json.dumps({"findings": [plain(each) for each in found]}, indent=2))
    else:
        print_findings(found, make_console())
    return exit_status(found)


def all_findings(
    overrides: Sequence[str], *, config_path: str = CONFIG_PATH, config_name: str = CONFIG_NAME
) -> Iterator[Finding]:
    """Yield the findings of our checks, and what verl itself says beyond them."""
    try:
        config = composed(overrides, config_path=config_path, config_name=config_name)
    except CompositionError as error:
        problem = error.problem
        if not problem.key:
            problem = replace(problem, seen=f"verl refuses the command line: {problem.seen}")
        yield Finding("composition", Severity.ERROR, problem)
        return
    yield from findings_with_verls(config, overrides)


def plain(finding: Finding) -> dict[str, object]:
    """Return a finding as a table of JSON."""
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
