"""Check every run of a grid before the first one starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext.ablation.declaration.grid import AblationError, GridRun
from grpo_verl_ext.tasks.chain_sum.prepared import (
    GREEDY_AT_LEAST,
    SAMPLED,
    SAMPLED_WITHIN,
    TASKS,
    PreparedTaskError,
    read_checked,
)
from grpo_verl_ext.verl_plugin import preflight
from grpo_verl_ext.verl_plugin.compose import CompositionError, composed
from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.rules import Rule, is_count
from grpo_verl_ext.verl_plugin.usage import own_task

RESPONSES = Rule(is_count, "an integer ≥ 1", "8")
SEED = Rule(lambda value: value == 0 or is_count(value), "an integer ≥ 0", "1")


def compose(runs: Sequence[GridRun]) -> dict[str, DictConfig]:
    """Compose verl's configuration of every run.

    Returns:
        Name of the run → configuration.

    Raises:
        AblationError: verl refuses the overrides, or would at its first step; the message names the run.
    """
    configs = {}
    for run in runs:
        try:
            configs[run.name] = composed(run.training.arguments())
            _check_integers(configs[run.name])
        except CompositionError as error:
            raise AblationError(f"{run.name}: verl refuses its overrides: {error}") from error
        except (SettingError, OmegaConfBaseException) as error:
            raise AblationError(f"{run.name}: {error}") from error
    return configs


def _check_integers(config: DictConfig) -> None:
    """Refuse 8.0 and other text where verl, once it has loaded everything, or `tasks_to_prepare` counts."""
    RESPONSES.check("actor_rollout_ref.rollout.n", OmegaConf.select(config, "actor_rollout_ref.rollout.n"))
    task = own_task(config)
    if task is not None and task.name in TASKS:
        SEED.check("task.seed", OmegaConf.select(config, "task.seed"))


def check(configs: dict[str, DictConfig]) -> None:
    """Run the driver's checks (`preflight`) on every run.

    Raises:
        AblationError: a check fails; the message names the run.
    """
    for name, config in configs.items():
        try:
            preflight.check(config)
        except (ValueError, OmegaConfBaseException) as error:
            raise AblationError(f"{name}: {error}") from error


def check_starts(runs: Sequence[GridRun], configs: dict[str, DictConfig]) -> None:
    """Refuse prepared embedded tasks whose starting models are outside the standard; others are not checked.

    Raises:
        AblationError: names the seeds, both accuracies and what to type.
    """
    outside, seeds = {}, set()
    for run in runs:
        task = own_task(configs[run.name])
        if task is None or task.name not in TASKS:
            continue
        try:
            manifest = read_checked(Path(task.folder))
        except PreparedTaskError as error:
            raise AblationError(f"{run.name}: {error}") from error
        if not manifest.is_standard:
            outside[f"task.seed={task.seed}"] = (
                f"greedy {manifest.greedy_accuracy:.3f}, sampled {manifest.sampled_accuracy:.3f}"
            )
            seeds |= {run.seed} & {task.seed}
    if outside:
        named = "; ".join(f"{key} ({found})" for key, found in outside.items())
        raise AblationError(
            f"starting models outside the standard: {named}; valid is an accuracy of at least "
            f"{GREEDY_AT_LEAST:g} greedy, and of {SAMPLED:g} ± {SAMPLED_WITHIN:g} sampled. "
            f"Type another seed: {_without(seeds, [run.seed for run in runs])}"
        )


def _without(outside: set[int], seeds: Sequence[int]) -> str:
    """The seeds with others in place of those outside, if the task's seed is the grid's."""
    if not outside:
        return "task.seed=<another> in base"
    inside = [seed for seed in dict.fromkeys(seeds) if seed not in outside]
    fresh = range(max(seeds) + 1, max(seeds) + 1 + len(outside))
    return f"'seeds=[{','.join(map(str, [*inside, *fresh]))}]'"


def tasks_to_prepare(configs: dict[str, DictConfig]) -> list[tuple[str, int]]:
    """Names and seeds of the embedded tasks that runs need and that have not been prepared."""
    tasks = map(own_task, configs.values())
    return sorted(
        {
            (str(task.name), int(task.seed))
            for task in tasks
            if task is not None and task.name in TASKS and not Path(task.folder).exists()
        }
    )
