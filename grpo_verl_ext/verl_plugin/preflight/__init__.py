"""What can be known before Ray starts is checked before Ray starts: each check one function, one message."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.verl_plugin import settings
from grpo_verl_ext.verl_plugin.cpu.checks import (
    advise_memory,
    advise_shared_memory,
    check_bucket,
    check_cache,
)
from grpo_verl_ext.verl_plugin.findings import Advise, Finding, Refuse, SettingError, Severity
from grpo_verl_ext.verl_plugin.groups.checks import advise_groups, check_groups
from grpo_verl_ext.verl_plugin.options import SECTION, grpo_ext
from grpo_verl_ext.verl_plugin.preflight import algorithm, files, machine, rewards, sizes, types
from grpo_verl_ext.verl_plugin.reference.checks import check_reference
from grpo_verl_ext.verl_plugin.reward_model.checks import check_reward_model
from grpo_verl_ext.verl_plugin.step_rewards.checks import check_steps

FIRST = "types"
"""What the other checks calculate with; where it is wrong, nothing else is asked."""

SILENCE = f"{SECTION}.{settings.SILENCE}"
"""Names of `ADVICE` that nobody wants to read again."""

CHECKS: Mapping[str, Refuse] = {
    FIRST: types.check_types,
    "device": machine.check_device,
    "rollout-engine": machine.check_rollout_engine,
    "queue": machine.check_queue,
    "trl": machine.check_trl,
    "task": files.check_task,
    "data": files.check_data,
    "model": files.check_model,
    "settings": algorithm.check_settings,
    "group-size": algorithm.check_group_size,
    "groups": check_groups,
    "reference": check_reference,
    "steps": check_steps,
    "reward-weights": rewards.check_rewards,
    "legacy-reward": rewards.check_legacy_sections,
    "reward-model": check_reward_model,
    "mini-batch": sizes.check_mini_batch,
    "model-length": sizes.check_model_length,
    "cpu-cache": check_cache,
    "cpu-bucket": check_bucket,
}

ADVICE: Mapping[str, Advise] = {
    "groups": advise_groups,
    "constant-length": algorithm.advise_constant_length,
    "kl-gradient": algorithm.advise_kl_gradient,
    "dynamic-sampling": rewards.advise_dynamic_sampling,
    "budgets": rewards.advise_budgets,
    "cpu-shared-memory": advise_shared_memory,
    "cpu-memory": advise_memory,
}


def check(config: DictConfig) -> None:
    """Refuse what would fail, or be another algorithm than it is called, after Ray has started.

    Raises:
        SettingError: the first thing wrong: key, value seen, valid values and the line to type.
    """
    for refuse in CHECKS.values():
        refuse(config)
    _silenced(config)


def warnings(config: DictConfig) -> Iterator[Finding]:
    """What can be meant, and seldom is; without what is silenced."""
    silenced = _silenced(config)
    for name, advise in ADVICE.items():
        if name not in silenced:
            for advice in advise(config):
                yield _finding(name, Severity.WARNING, config, advice.key, advice.message)


def findings(config: DictConfig) -> Iterator[Finding]:
    """All of it, errors first, each once; a later check may find the consequences of an error, too."""
    said = set[str]()
    for name, refuse in CHECKS.items():
        try:
            refuse(config)
        except SettingError as error:
            if str(error) not in said:
                yield _finding(name, Severity.ERROR, config, error.key, str(error))
            if name == FIRST:
                return
            said.add(str(error))
    try:
        yield from warnings(config)
    except SettingError as error:
        yield _finding("silence", Severity.ERROR, config, error.key, str(error))


def _finding(name: str, severity: Severity, config: DictConfig, key: str, message: str) -> Finding:
    value = OmegaConf.select(config, key, throw_on_resolution_failure=False)
    return Finding(
        name, severity, key, OmegaConf.to_object(value) if OmegaConf.is_config(value) else value, message
    )


def _silenced(config: DictConfig) -> list[str]:
    written = grpo_ext(config.algorithm).get(settings.SILENCE)
    silenced = OmegaConf.to_container(written) if OmegaConf.is_config(written) else written
    names: list[Any] = silenced if isinstance(silenced, list) else [silenced] if silenced else []
    for name in names:
        if not isinstance(name, str) or name not in ADVICE:
            raise SettingError(
                f"{SILENCE} has {name!r}; valid are {', '.join(ADVICE)}, the names of warnings. "
                f"Type: {SILENCE}=[]",
                key=SILENCE,
            )
    return names


__all__ = ["ADVICE", "CHECKS", "check", "findings", "warnings"]
