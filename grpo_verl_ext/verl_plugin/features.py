"""What this package adds to a training beside its algorithms: one record a feature, in the feature's folder.

A new feature is a folder, a record in its ``checks.py``, and a name in `_FOLDERS`. In another package it is
an entry point of the group ``grpo_verl_ext.features``, ``NAME = "package.module:RECORD"``. General code reads
`all_features` and names none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.requires import Condition, In
from grpo_verl_ext.utils.errors import Problem
from grpo_verl_ext.utils.keys import written
from grpo_verl_ext.utils.options import Section

Refuse = Callable[[DictConfig], object]
"""A check of a composed configuration that raises `SettingError` on a wrong setting."""
Advise = Callable[[DictConfig], Iterator[Problem]]
"""A check that yields warnings and refuses nothing."""

_FOLDERS = ("reference", "measure", "stored", "rewards", "shared_prompts", "cpu")
"""Folders of features, in the order of their checks; loaded when they are asked for."""
FAILED: dict[str, str] = {}
"""Features of other packages that could not be loaded → why."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What general code asks of a feature."""

    name: str = ""
    """Silences what is found by the rows."""
    used: Condition = field(default=lambda _: False)
    """Whether a training uses it."""
    requires: tuple[In, ...] = ()
    """What it was tested with."""
    checks: Mapping[str, Refuse] = field(default_factory=dict)
    """Refusals of trainings with a wrong setting, by the name that silences them."""
    advice: Mapping[str, Advise] = field(default_factory=dict)
    """Warnings likewise."""
    notes: Mapping[str, Advise] = field(default_factory=dict)
    """Advice likewise, which is no fault."""
    trainer: str = ""
    """``package.module:class`` of its part in the trainer, which is mixed into verl's."""
    worker: str = ""
    """``package.module:class`` of its part in verl's actor worker, where a training uses it."""
    agent_loops: Mapping[str, str] = field(default_factory=dict)
    """Agent loops of its own → the module that registers them."""
    options: type[Section] | None = None
    """The section ``algorithm.grpo_ext.NAME`` of another package's; its docstring describes the key."""
    anchors: Mapping[str, str] = field(default_factory=dict)
    """Value of ``gvpo_anchor`` → the field with its log-probs, which its trainer adds (`batch.fields.put`);
    verl's distillation loss is then the feature's own matter."""


@functools.cache
def all_features() -> tuple[Feature, ...]:
    """Return the records of all features, those of other packages last."""
    modules = (import_module(f"{__package__}.{folder}.checks") for folder in _FOLDERS)
    own = (each for module in modules for each in vars(module).values() if isinstance(each, Feature))
    return (*own, *foreign_features())


@functools.cache
def foreign_features() -> tuple[Feature, ...]:
    """Return the records of other packages' features; one that fails is in `FAILED`."""
    found = []
    for entry in entry_points(group="grpo_verl_ext.features"):
        try:
            record = entry.load()
            if not isinstance(record, Feature):
                raise TypeError("it must name a Feature")
            found.append(record)
        except Exception as error:  # noqa: BLE001  # another package's fault must cost its own part alone
            FAILED[entry.name] = f"{entry.value} ({type(error).__name__}: {error})"
    return tuple(found)


def has_option(*names: str) -> Condition:
    """Return whether a training sets one of these options of ``algorithm.grpo_ext``."""
    return lambda config: any(written(config.algorithm).get(name) is not None for name in names)
