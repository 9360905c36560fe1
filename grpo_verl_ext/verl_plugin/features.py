"""What this package adds to a training beside its algorithms: one record a feature, in the feature's folder.

Whatever treats all features alike goes through `all_features`: the checks before a training, the page of
support, the trainer modes and the registration of agent loops. A new feature is a folder, a record in its
``checks.py``, and a line of `_RECORDS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.requires import Condition, If, In, Off, refused
from grpo_verl_ext.catalogue.verls import KL_IN_REWARD, ON_KL_IN_LOSS, PUNISHES, overlong_punishment
from grpo_verl_ext.utils.errors import Problem
from grpo_verl_ext.verl_plugin.config import written

Refuse = Callable[[DictConfig], None]
"""A check of a composed configuration that raises `SettingError` on a wrong setting."""
Advise = Callable[[DictConfig], Iterator[Problem]]
"""A check that yields warnings and refuses nothing."""

_RECORDS = (
    "reference.checks:REFERENCE_REFRESH",
    "measure.checks:GOLD_MEASUREMENT",
    "measure.checks:TRAINING_REWARDS",
    "measure.checks:REQUEST_SEEDS",
    "stored.checks:STORED_RESPONSES",
    "steps.checks:STEP_REWARDS",
    "several_rewards.checks:SEVERAL_REWARDS",
    "teacher.checks:TEACHER",
    "rewards.checks:REWARD_MODELS",
)
"""Module and name of each feature's record, in the order of their checks; loaded when they are asked for."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What general code asks of a feature.

    Attributes:
        name: silences what is found by the rows.
        used: whether a training uses it.
        requires: what it was tested with.
        checks: refusals of trainings with a wrong setting, by the name that silences them.
        advice: warnings likewise.
        done_by_trainer: option in ``algorithm.grpo_ext`` → what a trainer mode of this package does with it.
        trainer: module and class of its part in the trainer, which is mixed into verl's.
        agent_loops: agent loops of its own → the module that registers them.
    """

    name: str = ""
    used: Condition = field(default=lambda _: False)
    requires: tuple[In, ...] = ()
    checks: Mapping[str, Refuse] = field(default_factory=dict)
    advice: Mapping[str, Advise] = field(default_factory=dict)
    done_by_trainer: Mapping[str, str] = field(default_factory=dict)
    trainer: str = ""
    agent_loops: Mapping[str, str] = field(default_factory=dict)


@functools.cache
def all_features() -> tuple[Feature, ...]:
    """Return the records of all features."""
    return tuple(load_named(name) for name in _RECORDS)


def load_named(name: str) -> Any:
    """Load what a record names: a module of this sub-package, or ``module:object``."""
    return resolve_name(f"{__package__}.{name}" if ":" in name else f"{__package__}.{name}:")


def has_option(name: str) -> Condition:
    """Return whether a training sets an option of ``algorithm.grpo_ext``."""
    return lambda config: written(config.algorithm).get(name) is not None


_UNREAD = "the reward of whole responses, which the estimator does not read"

OTHER_REWARDS = (
    *refused(
        Off(
            KL_IN_REWARD,
            f"is subtracted from {_UNREAD}",
            when=If("algorithm.kl_ctrl.kl_coef"),
            line=ON_KL_IN_LOSS,
        ),
        Off(PUNISHES, f"is added to {_UNREAD}", when=overlong_punishment),
    ),
    Off(
        "algorithm.filter_groups.enable", "drops prompts by one number, and the estimator learns from others"
    ),
)
"""For an estimator that learns from the rewards of steps, or from several rewards."""
