"""Look at every value of a configuration as verl gets it: after Hydra's grammar, after interpolation.

verl's own defaults, which it keeps in one file, say what a key is: a section, a switch, a number or a text.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, InterpolationToMissingValueError

from grpo_verl_ext.utils.errors import Finding, Line, Problem, Severity, as_typed
from grpo_verl_ext.utils.keys import ACTOR, CORRECTION, FULLY_ASYNC, ROLLOUT, key_of, moved_key
from grpo_verl_ext.verl_plugin.compose import CONFIG_PATH, folder_of

NAME = "types"
"""The name of this check."""
COUNTS = (
    *("data.train_batch_size", f"{ROLLOUT}.n", "trainer.total_epochs"),
    *(f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs"),
)
"""Numbers of prompts, of responses and of passes."""
_POSITIVE = (f"{ACTOR}.optim.lr", f"{ROLLOUT}.temperature")
_BOUNDS = (f"{CORRECTION}.rollout_is_threshold", f"{CORRECTION}.rollout_rs_threshold")
"""Keys that take a number or the text of a pair, such as IcePop's 0.5_5.0."""
_NUMBER_OR_NULL = re.compile(r".*(_batch_size(_per_gpu)?|\.seed|_training_steps|_scale_factor|max_model_len)")
"""Matches keys for which verl's default is null, and all else a number."""
_SECTION_OR_NULL = re.compile(
    r"algorithm\.(rollout_correction|filter_groups)|data\.sampler|reward\.reward_manager\.module|"
    r"actor_rollout_ref\.rollout\.profiler|.*\.(wrap_policy|turbo_config|tool_config|schedule|global_tool_config)"
)
"""Matches sections of verl's default for which its classes or its code take null."""
_NOT_SET = "the environment variable {name} is not set"
_CAUSES = {
    r"Environment variable '(?P<name>[^']+)' not found": _NOT_SET,
    r"Interpolation key '(?P<name>[^']+)' not found": "the configuration has no key {name}",
    r"Unsupported interpolation type (?P<name>\S+)": "nothing in this process resolves {name}:",
    r"(?P<name>)Recursive interpolation detected": "it refers to itself",
    r"(?P<name>)(?P<said>[^\n]+)": "it cannot be resolved: {said}",
}
"""OmegaConf's messages → what contradicts the value."""
_NONE = object()
"""Stands for verl's default of a key for which it has none."""


def unreadable(config: DictConfig) -> Iterator[Finding]:
    """Yield errors that mislead or end all other checks: no section, no value, an unconverted text."""
    leaves = list(_leaves(OmegaConf.to_container(config, resolve=False), verls_defaults()))
    if sections := [problem for leaf in leaves for problem in _no_section(*leaf)]:
        yield from map(_error, sections)
        return
    for key, written, usual in leaves:
        if "${" not in str(written) or ("oc.select" in str(written) and written == usual):
            continue  # verl's own selection fails for no value but that of another key
        try:
            value = OmegaConf.select(config, key)
            if OmegaConf.is_list(value):
                OmegaConf.to_container(value, resolve=True)
        except InterpolationToMissingValueError:
            pass  # a warning of its own
        except InterpolationResolutionError as error:
            yield from map(_error, _unresolved(key, written, str(error)))
        else:
            if written != usual and (valid := _instead_of_text(key, value, _usual(config, key, usual))):
                decoded = str(written).replace('"', r"\"")
                line = f'{key}="${{oc.decode:{decoded}}}"'
                fix = f"{key}=<value>" if "oc.decode" in decoded else Line(line)
                why = f"that is the text {value!r}, which verl does not convert"
                yield _error(Problem(key, written, fix, why, valid))


def unsuitable(config: DictConfig, words: Sequence[str]) -> Iterator[Finding]:
    """Yield errors of texts, and warnings of numbers that are too small or of which Hydra changed the text.

    Args:
        config: of which `unreadable` yields nothing.
        words: of the training's command; none: Hydra's own, where it composed the configuration.
    """
    if not words and HydraConfig.initialized():
        words = HydraConfig.get().overrides.task
    typed = {key_of(word): word.partition("=")[2] for word in words}
    for key, value, default in _leaves(OmegaConf.to_container(config, resolve=False), verls_defaults()):
        if default is _NONE or value == default or "${" in str(value):
            continue
        if key == "data.train_batch_size" and FULLY_ASYNC in config:  # whose scripts set 0
            continue
        usual = _usual(config, key, default)
        fix = Line(f"{key}={as_typed(default)}")
        if valid := _instead_of_text(key, value, usual):
            yield _error(Problem(key, value, fix, valid=valid))
        elif valid := _valid_number(key, value):
            yield Finding(NAME, Severity.WARNING, Problem(key, value, fix, valid=valid))
        elif type(value) in (int, float) and (key in _BOUNDS or isinstance(usual, str)):
            text = typed.get(key, "")
            why = f"the command has {text}: Hydra leaves out an underscore between digits"
            if re.search(r"\d_\d", text):
                yield Finding(NAME, Severity.WARNING, Problem(key, value, Line(f'{key}="{text}"'), why))


@cache
def verls_defaults() -> dict[str, Any]:
    """Return what verl's ``main_ppo`` composes without an override, from the file that verl keeps of it."""
    file = Path(folder_of(CONFIG_PATH), "_generated_ppo_trainer.yaml")
    defaults: dict[str, Any] = yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return defaults


def _leaves(given: Any, usual: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each key with its value as written, and verl's default or `_NONE`."""
    for name, value in given.items():
        default = usual.get(name, _NONE) if isinstance(usual, dict) else _NONE
        if isinstance(value, dict):
            yield from _leaves(value, default, f"{prefix}{name}.")
        elif value != "???":  # which OmegaConf takes for no value
            yield f"{prefix}{name}", value, default


def _usual(config: DictConfig, key: str, usual: Any) -> Any:
    """Return verl's default for a key, or 0 for null where all else is a number."""
    if usual is None and _NUMBER_OR_NULL.fullmatch(key):
        return 0
    if "${" not in str(usual):
        return usual
    try:
        return OmegaConf.create({"value": usual}, parent=config).value
    except InterpolationResolutionError:  # relative to a section
        return None


def _error(problem: Problem) -> Finding:
    return Finding(NAME, Severity.ERROR, problem)


def _no_section(key: str, written: Any, usual: Any) -> Iterator[Problem]:
    is_section = isinstance(usual, dict) and usual and moved_key(key) == key
    may_be_null = written is None and _SECTION_OR_NULL.fullmatch(key)
    if is_section and not may_be_null and "${" not in str(written):
        line = f"the same command without {key}={as_typed(written)}"
        yield Problem(key, written, Line(without=(key,), more=line), valid="a section")


def _unresolved(key: str, written: Any, error: str) -> Iterator[Problem]:
    """Yield the problem of an interpolation whose cause is not another value."""
    causes = ((re.search(pattern, error), why) for pattern, why in _CAUSES.items())
    found, why = next((found, why) for found, why in causes if found)
    # Hydra's own are known in a training; this package's resolvers fail for the value of another key.
    if found["name"] in str(written) and not re.search(
        r"HydraConfig was not set|\$\{grpo_ext\.", f"{error}{written}"
    ):
        fix = f"export {found['name']}=<value>" if why is _NOT_SET else f"{key}=<value>"
        yield Problem(key, written, fix, why.format(**found.groupdict()))


def _instead_of_text(key: str, value: Any, usual: Any) -> str:
    """Say what is valid where the value is a text and verl's default a switch or a number."""
    if not isinstance(value, str) or key in _BOUNDS or key.startswith("transfer_queue."):
        return ""  # TransferQueue reads sizes such as 4gb
    return {bool: "true or false", int: "a number", float: "a number"}.get(type(usual), "")


def _valid_number(key: str, value: Any) -> str:
    """Say which numbers are valid where the value is none of them."""
    if key in COUNTS and (type(value) is not int or value < 1):
        return "an integer ≥ 1"
    number = value if isinstance(value, int | float) else 0
    return "a finite number > 0" if key in _POSITIVE and not 0 < number < math.inf else ""
