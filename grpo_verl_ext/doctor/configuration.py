"""Find problems in a training's configuration without starting it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.doctor import verls_validation
from grpo_verl_ext.utils.errors import Finding, Problem, Severity, as_typed
from grpo_verl_ext.verl_plugin import preflight
from grpo_verl_ext.verl_plugin.compose import CONFIG_NAME, CONFIG_PATH, CompositionError, composed


def findings(
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
    found = list(preflight.findings(config))
    keys = {each.problem.key for each in found}
    defaults = _defaults(config_path, config_name)
    found += (each for each in _not_numbers(config, defaults) if each.problem.key not in keys)
    yield from found
    names = {each.problem.key.rpartition(".")[2] for each in found if each.severity is Severity.ERROR} - {""}
    for each in verls_validation.findings(config):
        if not any(re.search(rf"\b{name}\b", each.problem.reason) for name in names):
            yield each


@cache
def _defaults(config_path: str, config_name: str) -> DictConfig:
    return composed([], config_path=config_path, config_name=config_name)


def _not_numbers(config: DictConfig, defaults: DictConfig) -> Iterator[Finding]:
    """Yield texts where verl's default is a number or a truth value; most fail only when they are used."""
    given, default = (OmegaConf.to_container(each, resolve=False) for each in (config, defaults))
    for key, value, usual in _pairs(given, default, ""):
        if isinstance(value, str) and isinstance(usual, int | float) and "${" not in value:
            valid = "true or false" if isinstance(usual, bool) else "a number"
            problem = Problem(
                key, value, f"{key}={as_typed(usual)}", valid=f"{valid}, as in verl's own default"
            )
            yield Finding("types", Severity.WARNING, problem)


def _pairs(given: Any, default: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    for name in given.keys() & default.keys():
        value, usual = given[name], default[name]
        if isinstance(value, dict) and isinstance(usual, dict):
            yield from _pairs(value, usual, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value, usual
