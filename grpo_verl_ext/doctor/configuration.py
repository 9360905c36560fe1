"""Find problems in a training's configuration without starting it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from grpo_verl_ext.verl_plugin import preflight
from grpo_verl_ext.verl_plugin.compose import CONFIG_NAME, CONFIG_PATH, CompositionError, composed
from grpo_verl_ext.verl_plugin.errors import Finding, Problem, Severity

VERLS = (AssertionError, ValueError, TypeError, OmegaConfBaseException, HydraException)
"""Exceptions that verl's own validation raises."""


def findings(
    overrides: Sequence[str], *, config_path: str = CONFIG_PATH, config_name: str = CONFIG_NAME
) -> Iterator[Finding]:
    """Yield the findings of our checks and, if none is an error, verl's refusal."""
    try:
        config = composed(overrides, config_path=config_path, config_name=config_name)
    except CompositionError as error:
        problem = error.problem
        if not problem.key:
            problem = replace(problem, seen=f"verl refuses the command line: {problem.seen}")
        yield Finding("composition", Severity.ERROR, problem)
        return
    found = list(preflight.findings(config))
    yield from found
    if not any(each.severity is Severity.ERROR for each in found):
        yield from _verls_own(config)


def _verls_own(config: DictConfig) -> Iterator[Finding]:
    """Run verl's validation without our checks, which have already run."""
    verls: object = getattr(validate_config, "__wrapped__", validate_config)
    assert callable(verls)
    try:
        verls(config, need_reference_policy(config), need_critic(config))
    except VERLS as error:
        seen = f"verl refuses the configuration: {error}"
        yield Finding("verl", Severity.ERROR, Problem("", None, seen=seen))
