"""Say which value each setting of a training has, where it comes from, and what differs from the paper."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

import grpo_verl_ext.config
from grpo_verl_ext.catalogue import ALGORITHMS, PRESETS, enter_foreign, left_to_user
from grpo_verl_ext.catalogue.preset_comments import OURS, keys_of
from grpo_verl_ext.preflight.names import differing
from grpo_verl_ext.preflight.values import verls_defaults
from grpo_verl_ext.proof.judge import unread
from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.utils.errors import Problem, as_typed
from grpo_verl_ext.utils.keys import ACTOR, MODE, MODEL, ROLLOUT, SECTION, key_of, setting
from grpo_verl_ext.verl_plugin.compose import CONFIG_NAME, CompositionError, composed

ALGO = "algo"
"""The Hydra group of the presets."""
_GROUP = f"+{ALGO}@_global_"
"""Chooses a preset, and is an error of Hydra's where verl has not loaded the plugin."""

_WIRING = (f"{SECTION}.preset", f"{ACTOR}.policy_loss._target_", f"{ACTOR}.policy_loss.max_response_length")
"""Keys of presets that say nothing of the algorithm."""
_OF_EVERY_TRAINING = (
    MODEL,
    *(f"data.{name}" for name in ("train_batch_size", "max_prompt_length", "max_response_length")),
    *(f"{ROLLOUT}.{name}" for name in ("n", "temperature", "top_p", "top_k")),
    *(f"{ACTOR}.{name}" for name in ("optim.lr", "ppo_mini_batch_size", "ppo_epochs", "clip_ratio_low")),
    *(f"{ACTOR}.{name}" for name in ("clip_ratio_high", "clip_ratio_c", "entropy_coeff")),
    MODE,
    "trainer.total_epochs",
)
"""Keys that change the result of any training."""
_NOT_OF_THE_PAPER = (OURS, "not in the paper")
"""Beginnings of a comment in a preset's file."""


@dataclass(frozen=True)
class Value:
    """The value of one setting.

    Attributes:
        source: the command line, a preset with the place in its paper, or verl's default.
    """

    key: str
    value: Any
    source: str


def words_of(preset: str, overrides: Sequence[str]) -> list[str]:
    """Return the words of verl's command line, the preset's before the first override.

    Hydra takes no override before an option that further ones follow.
    """
    is_override = (each.startswith("~") or ("=" in each and not each.startswith("-")) for each in overrides)
    first = next((at for at, it_is in enumerate(is_override) if it_is), len(overrides))
    return [*overrides[:first], f"{_GROUP}={preset}", *overrides[first:]]


def values(
    preset: str, config: DictConfig, overrides: Sequence[str], config_name: str = CONFIG_NAME
) -> Iterator[Value]:
    """Yield what the preset and the command set, and what matters in every training."""
    sources = dict(_sources(preset, overrides))
    known = [key for key in PRESETS[preset].leaves if key not in _WIRING]
    given = [key for key in map(key_of, overrides) if "." in key]
    otherwise = "verl's default" if config_name == CONFIG_NAME else f"--config-name={config_name}"
    for key in dict.fromkeys([*known, *_OF_EVERY_TRAINING, *given]):
        yield Value(key, setting(config, key), sources.get(key, otherwise))


def _sources(preset: str, overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield key and source; of two for a key the later one counts, as in Hydra."""
    name, paper = f"+{ALGO}={preset}", ALGORITHMS[preset].paper
    for key in PRESETS[preset].leaves:
        yield key, f"{name}: {PRESETS[preset].comments.get(key, paper)}"
    for word in overrides:
        group, choice = key_of(word), word.partition("=")[2]
        if "." not in group and group != ALGO:
            for key in _keys_of_choice(group, choice):
                yield key, f"+{group}={choice}"
    for word in overrides:
        yield key_of(word), "command line"


def _keys_of_choice(group: str, choice: str) -> Iterator[str]:
    """Yield the keys that a file of this package sets, and those of the files that it begins with."""
    file = Path(next(iter(grpo_verl_ext.config.__path__)), group, f"{choice}.yaml")
    if file.is_file():
        text = file.read_text("utf-8")
        for first in yaml.safe_load(text).get("defaults", []):
            if first != "_self_":
                yield from _keys_of_choice(group, first)
        yield from keys_of(text)


def replaced(preset: str, config: DictConfig, overrides: Sequence[str], *, yours: bool = False) -> list[str]:
    """Return a sentence for each other value than the preset's.

    Args:
        yours: those which the algorithm leaves to its user; without, those which it does not.
    """
    sources, free = dict(_sources(preset, overrides)), left_to_user(preset)
    return [
        f"{key}={as_typed(now)} ({sources.get(key, 'configuration').partition(':')[0]}); the preset has "
        f"{as_typed(own)}: {PRESETS[preset].comments.get(key, ALGORITHMS[preset].paper)}"
        for key, (own, now) in differing(config).items()
        if (key in free) is yours
    ]


def without_effect(config: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Return a sentence for each word of the command that changes nothing of what is trained."""
    return [each.problem.reason for each in unread(config, overrides, OmegaConf.create(verls_defaults()))]


def not_of_the_paper(preset: str, config: DictConfig) -> list[str]:
    """Return a sentence for each value of the preset that its paper does not give."""
    return [
        f"{key}={as_typed(setting(config, key))}: {comment}"
        for key, comment in PRESETS[preset].comments.items()
        if comment.startswith(_NOT_OF_THE_PAPER) and key not in _WIRING
    ]


def configured(preset: str, overrides: Sequence[str], **options: str) -> DictConfig:
    """Return the configuration that would be trained.

    Raises:
        CompositionError: no such preset, or verl would refuse the command line.
    """
    enter_foreign()
    if preset not in PRESETS:
        nearest = next(
            iter(get_close_matches(preset.lower().replace("-", "_"), PRESETS, n=1)), "<one of them>"
        )
        raise CompositionError(Problem("ALGO", preset, nearest, valid=tuple(sorted(PRESETS))))
    return composed(words_of(preset, overrides), **options)


def is_readable(overrides: Sequence[str]) -> bool:
    """Whether all words are overrides; with options such as ``--multirun`` Hydra alone knows the values."""
    return not any(word.startswith("-") for word in overrides)


def print_head(preset: str, config: DictConfig | None, overrides: Sequence[str]) -> None:
    """Print the preset, its paper, and every value of it that is another in this training.

    Args:
        config: None where only Hydra knows the values.
    """
    console = make_console()
    console.print(f"{preset}: {ALGORITHMS[preset].paper}")
    if config is not None:
        for each in replaced(preset, config, overrides, yours=True):
            console.print(f"  yours: {each}")
        for each in replaced(preset, config, overrides):
            console.print(f"  replaced: {each}")


def print_values(
    preset: str, config: DictConfig, overrides: Sequence[str], config_name: str = CONFIG_NAME
) -> None:
    """Print a table of values and sources, and what differs from the paper."""
    console = make_console()
    print_table(console, _table(list(values(preset, config, overrides, config_name))))
    for title, sentences in (
        ("yours", replaced(preset, config, overrides, yours=True)),
        ("changes nothing", without_effect(config, overrides)),
    ):
        if sentences:
            console.print("\n  ".join([f"{title}:", *sentences]))
    console.print(f"differs from {ALGORITHMS[preset].paper}:")
    found = [*replaced(preset, config, overrides), *not_of_the_paper(preset, config)]
    for each in found or ["nothing that the preset sets"]:
        console.print(f"  {each}")


def print_json(
    preset: str, config: DictConfig, overrides: Sequence[str], config_name: str = CONFIG_NAME
) -> None:
    """Print the same as JSON."""
    rows = values(preset, config, overrides, config_name)
    content = {
        "preset": preset,
        "paper": ALGORITHMS[preset].paper,
        "values": [{"key": each.key, "value": _plain(each.value), "source": each.source} for each in rows],
        "yours": replaced(preset, config, overrides, yours=True),
        "replaced": replaced(preset, config, overrides),
        "changes_nothing": without_effect(config, overrides),
        "not_of_the_paper": not_of_the_paper(preset, config),
    }
    print(json.dumps(content, indent=2, ensure_ascii=False))


def _table(rows: Sequence[Value]) -> Table:
    table = Table(title_justify="left")
    for name in ("key", "value", "source"):
        table.add_column(name, overflow="fold")
    for each in rows:
        table.add_row(each.key, as_typed(_plain(each.value)), each.source)
    return table


def _plain(value: object) -> object:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
