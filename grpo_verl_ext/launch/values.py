"""Say which value each setting of a training has, where it comes from, and what differs from the paper."""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from rich.table import Column, Table

import grpo_verl_ext.config
from grpo_verl_ext.catalogue import ALGORITHMS, PRESETS, enter_foreign, left_to_user
from grpo_verl_ext.catalogue.presets import OURS, WIRING
from grpo_verl_ext.proof import differing
from grpo_verl_ext.proof.judge import unread
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.errors import SettingError, as_typed
from grpo_verl_ext.utils.keys import ACTOR, MODE, MODEL, ROLLOUT, key_of, setting
from grpo_verl_ext.verl_plugin.compose import CONFIG_NAME, CONFIG_PATH, composed

_WEIGHTS = "reward.custom_reward_function.reward_kwargs.weights"
_OF_EVERY_TRAINING = (
    MODEL,
    *(f"data.{name}" for name in ("train_batch_size", "max_prompt_length", "max_response_length")),
    *(f"{ROLLOUT}.{name}" for name in ("n", "temperature", "top_p", "top_k")),
    *(f"{ACTOR}.{name}" for name in ("optim.lr", "ppo_mini_batch_size", "ppo_epochs", "clip_ratio_low")),
    *(f"{ACTOR}.{name}" for name in ("clip_ratio_high", "clip_ratio_c", "entropy_coeff")),
    *(MODE, "trainer.total_epochs"),
)
"""Keys that change the result of any training."""


def words_of(preset: str, overrides: Sequence[str]) -> list[str]:
    """Return the words of verl's command line, the preset's before the first override.

    Hydra takes no override before an option that further ones follow. With ``@_global_`` it refuses the
    preset where verl has not loaded the plugin.
    """
    is_override = (each.startswith("~") or ("=" in each and not each.startswith("-")) for each in overrides)
    first = next((at for at, it_is in enumerate(is_override) if it_is), len(overrides))
    return [*overrides[:first], f"+algo@_global_={preset}", *overrides[first:]]


def _sources(preset: str, overrides: Sequence[str]) -> dict[str, str]:
    """Return the source of each key; of two for a key the later one counts, as in Hydra."""
    own, paper = PRESETS[preset], ALGORITHMS[preset].paper
    found = {key: f"preset {preset}: {own.comments.get(key, paper)}" for key in own.leaves}
    for word in overrides:
        group, choice = key_of(word), word.partition("=")[2]
        names = [] if "." in group or group == "algo" else [choice]
        while names:  # a file of this package, and the files that it begins with
            file = Path(next(iter(grpo_verl_ext.config.__path__)), group, f"{names.pop()}.yaml")
            content = yaml.safe_load(file.read_text("utf-8")) if file.is_file() else {}
            names += [name for name in content.get("defaults", []) if name != "_self_"]
            found |= dict.fromkeys(dict(leaves(content)), f"+{group}={choice}")
    return found | dict.fromkeys(map(key_of, overrides), "command line")


def replaced(preset: str, config: DictConfig, overrides: Sequence[str]) -> dict[str, list[str]]:
    """Return a sentence for each other value than the preset's; ``yours`` are those left to the user."""
    sources, free = _sources(preset, overrides), left_to_user(preset)
    found: dict[str, list[str]] = {"yours": [], "replaced": []}
    for key, (own, now) in differing(config).items():
        source = sources.get(key, "configuration").partition(":")[0]
        place = PRESETS[preset].comments.get(key, ALGORITHMS[preset].paper)
        seen = f"{key}={as_typed(now)} ({source}); the preset has {as_typed(own)}: {place}"
        found["yours" if key in free else "replaced"].append(seen)
    return found


def configured(
    preset: str, overrides: Sequence[str], config_path: str = CONFIG_PATH, config_name: str = CONFIG_NAME
) -> DictConfig:
    """Return the configuration that would be trained, or raise `SettingError`."""
    enter_foreign()
    if preset not in PRESETS:
        near = get_close_matches(preset.lower().replace("-", "_"), PRESETS, n=1)
        raise SettingError("ALGO", preset, fix=[*near, "<one of them>"][0], valid=tuple(sorted(PRESETS)))
    return composed(words_of(preset, overrides), config_path=config_path, config_name=config_name)


def shown(
    preset: str, config: DictConfig, overrides: Sequence[str], config_name: str = CONFIG_NAME
) -> dict[str, Any]:
    """Return what the preset and the command set and what matters in every training, as plain values.

    Each value comes with its source: the command line, a preset with the place in its paper, or verl's
    default. ``changes_nothing`` has a sentence for each word of the command that trains nothing else,
    ``not_of_the_paper`` one for each value of the preset that its paper does not give.
    """
    sources, own = _sources(preset, overrides), PRESETS[preset]
    known = [key for key in own.leaves if key not in WIRING]
    given = [key for key in map(key_of, overrides) if "." in key]
    otherwise = "verl's default" if config_name == CONFIG_NAME else f"--config-name={config_name}"
    weights = [_WEIGHTS] if setting(config, _WEIGHTS) else []
    of_weights = [where for key, where in sources.items() if key.startswith(f"{_WEIGHTS}.")]
    sources.setdefault(_WEIGHTS, ", ".join(dict.fromkeys(of_weights)) or otherwise)
    values = []
    for key in dict.fromkeys((*known, *_OF_EVERY_TRAINING, *weights, *given)):
        value = setting(config, key)
        plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        values.append({"key": key, "value": plain, "source": sources.get(key, otherwise)})
    return {
        "preset": preset,
        "paper": ALGORITHMS[preset].paper,
        "values": values,
        **replaced(preset, config, overrides),
        "changes_nothing": [each.problem.reason for each in unread(config, overrides)],
        "not_of_the_paper": [
            f"{key}={as_typed(setting(config, key))}: {comment}"
            for key, comment in own.comments.items()
            if comment.startswith((OURS, "not in the paper")) and key not in WIRING
        ],
    }


def print_values(content: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what `shown` returns as JSON, or as a table of values and what differs from the paper."""
    if as_json:
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return
    console = make_console()
    table = Table(*(Column(name, overflow="fold") for name in ("key", "value", "source")))
    for each in content["values"]:
        table.add_row(each["key"], as_typed(each["value"]), each["source"])
    console.print(table, "")
    different = [*content["replaced"], *content["not_of_the_paper"]] or ["nothing that the preset sets"]
    parts = {"yours": content["yours"], "changes nothing": content["changes_nothing"]}
    for title, sentences in {**parts, f"differs from {content['paper']}": different}.items():
        if sentences:
            console.print("\n  ".join([f"{title}:", *sentences]))
