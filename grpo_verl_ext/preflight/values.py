"""Look at every value of a configuration as verl gets it: after Hydra's grammar, after interpolation.

verl's own defaults, which it keeps in one file, say what a key is: a section, a switch, a number or a text.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, InterpolationToMissingValueError

from grpo_verl_ext.catalogue import LOSSES
from grpo_verl_ext.proof import verls_defaults
from grpo_verl_ext.utils.documents import leaves
from grpo_verl_ext.utils.errors import Finding, Line, Problem, Severity, as_typed
from grpo_verl_ext.utils.keys import ACTOR, CORRECTION, POLICY_LOSS, ROLLOUT, key_of, moved_key

NAME = "types"
COUNTS = (
    *("data.train_batch_size", "trainer.total_epochs"),
    *(f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs"),
)
_BOUNDS = (f"{CORRECTION}.rollout_is_threshold", f"{CORRECTION}.rollout_rs_threshold")
"""Keys that take a number or the text of a pair, such as IcePop's 0.5_5.0."""
_NUMBER_OR_NULL = re.compile(r".*(_batch_size(_per_gpu)?|\.seed|_training_steps|_scale_factor|max_model_len)")
"""Matches keys for which verl's default is null, and all else a number."""
_SECTION_OR_NULL = re.compile(
    r"algorithm\.(rollout_correction|filter_groups)|data\.sampler|reward\.reward_manager\.module|"
    r"actor_rollout_ref\.rollout\.profiler|.*\.(wrap_policy|turbo_config|tool_config|schedule|global_tool_config)"
)
"""Matches sections of verl's default for which its classes or its code take null."""
_CAUSE = re.compile(r"variable '(?P<variable>[^']+)' not found|key '(?P<key>[^']+)' not|type (?P<kind>\S+)")
"""Matches in OmegaConf's messages what an interpolation asks for."""


def wrong(config: DictConfig, words: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield errors of values that verl cannot use, and warnings of those that nothing reads as typed.

    The errors would mislead or end all other checks.
    """
    typed = {key_of(word): word.partition("=")[2] for word in words}
    whole: Any = [OmegaConf.to_container(each, resolve=False) for each in (config, verls_defaults())]
    given, usual = (dict(leaves(each)) for each in whole)
    sections = {key[: dot.start()] for key in usual for dot in re.finditer(r"\.", key)}
    given = {key: value for key, value in given.items() if value not in ("???", {})}  # which are no values
    broken = False
    for key in [key for key in given if key in sections and moved_key(key) == key]:
        value = given[key]
        if "${" not in str(value) and not (value is None and _SECTION_OR_NULL.fullmatch(key)):
            broken = True
            line = Line(without=(key,), more=f"the same command without {key}={as_typed(value)}")
            yield Finding(NAME, Severity.ERROR, Problem(key, value, line, valid="a section"))
    models = (loss.options for loss in LOSSES.values() if loss.options)
    homes = {name: f"{POLICY_LOSS}.{name}" for model in models for name in model.model_fields}
    for key, value in given.items() if not broken else ():
        default = usual.get(key, ...)
        home = homes.get(key.rpartition(".")[2], key)
        if home != key and key not in usual and key.startswith(("algorithm.", "actor_rollout_ref.")):
            line = Line(f"{'++' * (home not in given)}{home}={as_typed(value)}", without=(key,))
            yield Finding(NAME, Severity.WARNING, Problem(key, value, line, "nothing reads it", home))
        if "${" in str(value):
            for problem in _interpolated(config, key, value, default):
                yield Finding(NAME, Severity.ERROR, problem)
        elif key in usual and value != default and key != f"{ROLLOUT}.n":  # of which a row speaks
            line = Line(f"{key}={as_typed(default)}")
            if valid := _instead_of_text(config, key, value, default):
                yield Finding(NAME, Severity.ERROR, Problem(key, value, line, valid=valid))
            elif key in _BOUNDS and type(value) in (int, float) and "_" in (text := typed.get(key, "")):
                why = f"the command has {text}: Hydra leaves out an underscore between digits"
                yield Finding(NAME, Severity.WARNING, Problem(key, value, Line(f'{key}="{text}"'), why))


def _interpolated(config: DictConfig, key: str, written: Any, usual: Any) -> Iterator[Problem]:
    """Yield the problem of a value that cannot be resolved, or is a text in the place of something else."""
    if "oc.select" in str(written) and written == usual:
        return  # verl's own selection fails for no value but that of another key
    try:
        value = OmegaConf.select(config, key)
        if OmegaConf.is_list(value):
            OmegaConf.to_container(value, resolve=True)
    except InterpolationToMissingValueError:
        return  # a warning of its own
    except InterpolationResolutionError as error:
        found = _CAUSE.search(str(error))
        name = found[found.lastgroup or 0] if found else ""
        # Hydra's own are known in a training; this package's resolvers fail for the value of another key.
        is_known = re.search(r"HydraConfig was not set|\$\{grpo_ext\.", f"{error}{written}")
        if name in str(written) and not is_known:
            fix = f"export {name}=<value>" if found and found["variable"] else f"{key}=<value>"
            yield Problem(key, written, fix, f"OmegaConf says: {str(error).splitlines()[0]}")
        return
    if written != usual and (valid := _instead_of_text(config, key, value, usual)):
        decoded = str(written).replace('"', r"\"")
        fix = f"{key}=<value>" if "oc.decode" in decoded else Line(f'{key}="${{oc.decode:{decoded}}}"')
        yield Problem(key, written, fix, f"that is the text {value!r}, which verl does not convert", valid)


def _instead_of_text(config: DictConfig, key: str, value: Any, usual: Any) -> str:
    """Say what is valid where the value is a text and verl's default a switch or a number."""
    if not isinstance(value, str) or key in _BOUNDS or key.startswith("transfer_queue."):
        return ""  # TransferQueue reads sizes such as 4gb
    if usual is None and _NUMBER_OR_NULL.fullmatch(key):
        return "a number"
    if "${" in str(usual):
        try:
            usual = OmegaConf.create({"value": usual}, parent=config).value
        except InterpolationResolutionError:  # relative to a section
            return ""
    return {bool: "true or false", int: "a number", float: "a number"}.get(type(usual), "")
