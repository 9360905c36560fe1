"""What this package adds to a training beside its algorithms: one record a feature, in the feature's folder.

Whatever treats all features alike goes through `all_features`: the checks before a training, the page of
support, the trainer modes and the registration of agent loops. A new feature is a folder, a record in its
``checks.py``, and a line of `_RECORDS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.record import Advice, Checks
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.config import written

_RECORDS = (
    "reference.checks:REFERENCE_REFRESH",
    "measure.checks:GOLD_MEASUREMENT",
    "measure.checks:REWARDED_MEASUREMENT",
    "measure.checks:TRAINING_REWARDS",
    "measure.checks:REQUEST_SEEDS",
    "stored.checks:STORED_RESPONSES",
    "steps.checks:STEP_REWARDS",
    "several_rewards.checks:SEVERAL_REWARDS",
    "teacher.checks:TEACHER",
    "rewards.checks:REWARD_MODELS",
    "steps.checks:STEP_REWARD_MODEL",
)
"""Module and name of each feature's record, in the order of their checks; loaded when they are asked for."""

OUR_ASYNC_MODES = ("grpo_ext_colocate_async", "grpo_ext_separate_async")
UNTRIED_ENGINES = ("megatron", "megatron_stages", "veomni", "torchtitan", "other_engine")
"""Contexts of engines where neither GVPO's drift nor the reference refresh was tested."""

Place = str | tuple[str, str]
"""A context of `preflight.training`, or two that only together change a feature, in their order there."""
Uses = Callable[[DictConfig], bool]
"""Whether a training uses a feature, or meets a context."""


@dataclass(frozen=True)
class Refusal:
    """Features that would do something else under some contexts, or could not be tested there."""

    features: tuple[str, ...]
    places: tuple[Place, ...]
    key: str
    reason: str
    valid: str | tuple[str, ...]
    fix: str
    seen: str = ""
    """Replaces "key is value" in the message where one value does not say it."""

    def error(self, value: object) -> SettingError:
        """Return the error for this value of the key."""
        return SettingError(self.key, value, why=self.reason, valid=self.valid, fix=self.fix, seen=self.seen)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What general code asks of a feature.

    Attributes:
        uses: its names on the page of support → whether a training uses it.
        is_measurement: it changes nothing of what is trained.
        without_our_mode: why it is refused without a trainer mode of this package; empty if it works there.
        without_v1: why it is refused under verl's other trainers; empty if it works there, or as above.
        refusals: where else it is refused.
        checks: refusals of trainings with a wrong setting, by the name that silences them.
        advice: warnings likewise.
        done_by_trainer: option in ``algorithm.grpo_ext`` → what a trainer mode of this package does with it.
        reward_models: options there that name models which the reward manager of this package asks.
        trainer: module and class of its part in the trainer, which is mixed into verl's.
        agent_loops: agent loops of its own → the module that registers them.
    """

    uses: Mapping[str, Uses] = field(default_factory=dict)
    is_measurement: bool = False
    without_our_mode: str = ""
    without_v1: str = ""
    refusals: tuple[Refusal, ...] = ()
    checks: Checks = field(default_factory=dict)
    advice: Advice = field(default_factory=dict)
    done_by_trainer: Mapping[str, str] = field(default_factory=dict)
    reward_models: tuple[str, ...] = ()
    trainer: str = ""
    agent_loops: Mapping[str, str] = field(default_factory=dict)


@functools.cache
def all_features() -> tuple[Feature, ...]:
    """Return the records of all features."""
    return tuple(load_named(name) for name in _RECORDS)


def load_named(name: str) -> Any:
    """Load what a record names: a module of this sub-package, or ``module:object``."""
    return resolve_name(f"{__package__}.{name}" if ":" in name else f"{__package__}.{name}:")


def has_option(name: str) -> Uses:
    """Return whether a training sets an option of ``algorithm.grpo_ext``."""
    return lambda config: written(config.algorithm).get(name) is not None
