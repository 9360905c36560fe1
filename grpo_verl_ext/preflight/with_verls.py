"""Find all problems of a composed configuration, ours and what verl itself says, and print them."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from grpo_verl_ext import preflight
from grpo_verl_ext.preflight import values
from grpo_verl_ext.proof.judge import unread
from grpo_verl_ext.utils.errors import Finding, Line, Problem, Severity
from grpo_verl_ext.utils.keys import ACTOR, setting
from grpo_verl_ext.verl_plugin.compose import nearest_line

_CLEAN, _WARNED, _WRONG = 0, 1, 2
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold"}


def findings_with_verls(config: DictConfig, words: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield the findings of our checks, and what verl itself says beyond them.

    Args:
        config: the composed configuration.
        words: of the command; none: Hydra's own.
    """
    if not words and HydraConfig.initialized():
        words = list(HydraConfig.get().overrides.task)
    found = list(preflight.findings(config, words))
    yield from found
    if not any(values.unreadable(config)):
        yield from unread(config, words, OmegaConf.create(values.verls_defaults()))
    names = {each.problem.key.rpartition(".")[2] for each in found if each.severity is Severity.ERROR} - {""}
    for each in _findings_of_verl(config):
        if not any(re.search(rf"\b{name}\b", each.problem.reason) for name in names):
            yield each


_REFUSALS = (AssertionError, ValueError, TypeError, OmegaConfBaseException, HydraException)
"""Exceptions that verl's own validation raises."""
LARGEST_RANK = 512
"""Largest rank of a LoRA adapter in vLLM, as verl's ``get_vllm_max_lora_rank`` has it."""
_LORA_RANKS = ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank")
_INSTANTIATED = re.compile(
    r"Error in call to target '[^']+':\s\w+\((['\"])(?P<said>.*)\1\)\sfull_key: (?P<key>\S+)", re.S
)
"""Matches Hydra's message for what a configuration's class refuses."""

_Line = Callable[[re.Match[str], DictConfig], str]
"""(the match of verl's message, the configuration) → the line to type."""


def _findings_of_verl(config: DictConfig) -> Iterator[Finding]:
    """Yield verl's refusal, and what its validation leaves out or asks of this machine's vLLM.

    Nothing of values that it cannot read or calculate with, for which verl would raise Python's own errors.
    """
    if any(values.unreadable(config)) or any(type(setting(config, key)) is not int for key in values.COUNTS):
        return
    try:
        _validate(_without_lora(config))
    except _REFUSALS as error:
        yield _refused(_refusal(str(error), config))
    yield from _two_kls(config)
    yield from _large_rank(config)
    yield from _separate_async(config)


def _validate(config: DictConfig) -> None:
    """Run verl's validation without our checks, which run before it in a training."""
    verls: object = getattr(validate_config, "__wrapped__", validate_config)
    assert callable(verls)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Disabled critic")  # as every algorithm but PPO does
        verls(config, need_reference_policy(config), need_critic(config))
        if setting(config, "distillation.enabled"):
            omega_conf_to_dataclass(config.distillation)  # the trainer does, after it has started workers


def _without_lora(config: DictConfig) -> DictConfig:
    """Return the configuration without LoRA, for whose rank verl imports vLLM, which may be missing."""
    ranks = [key for key in _LORA_RANKS if OmegaConf.select(config, key)]
    if not ranks:
        return config
    copy = deepcopy(config)
    with open_dict(copy):
        for key in ranks:
            OmegaConf.update(copy, key, 0)
    return copy


def _refused(problem: Problem) -> Finding:
    return Finding("verl", Severity.ERROR, problem)


def _refusal(message: str, config: DictConfig) -> Problem:
    built = _INSTANTIATED.fullmatch(message.strip())
    key, said = (built["key"], built["said"]) if built else ("", message)
    seen = f"verl refuses the configuration: {' '.join(said.split())}"
    if unexpected := re.search(r"got an unexpected keyword argument '(?P<name>\w+)'", said):
        key = f"{key}.{unexpected['name']}"
        value = setting(config, key)
        near = nearest_line(config, key, value)
        return Problem(key, value, Line(f"~{key}", *filter(None, [near])), seen=seen)
    found = ((re.search(pattern, said), line) for pattern, line in _LINES.items())
    return Problem(key, None, next((line(match, config) for match, line in found if match), ""), seen=seen)


def _full(key: str) -> str:
    """Return a key of verl's messages, which leave out the first section of the actor's."""
    return f"actor_rollout_ref.{key}" if key.startswith("actor.") else key


def _micro_batch(match: re.Match[str], _config: DictConfig) -> Line:
    key = _full(match["key"])
    dynamic = "critic" if key.startswith("critic.") else ACTOR
    return Line(f"{key}=1", more=f", or {dynamic}.use_dynamic_bsz=true")


def _divisible(match: re.Match[str], config: DictConfig) -> str:
    least, n = int(match["least"]), int(config.actor_rollout_ref.rollout.n)
    prompts = least // math.gcd(least, n)
    return Line(f"data.train_batch_size={math.ceil(config.data.train_batch_size / prompts) * prompts}")


_LINES: Mapping[str, _Line] = {
    r"set at least one of '[\w.]+' or '(?P<key>[\w.]+)'": _micro_batch,
    r"Please remove '(?P<key>[\w.]+)'": lambda match, _: Line(f"{_full(match['key'])}=null"),
    r"must be divisible by minimal possible batch size \((?P<least>\d+)\)": _divisible,
    r"train_batch_size \((?P<prompts>\d+)\) must be >= (?P<key>[\w.]+) ": (
        lambda match, _: Line(f"{_full(match['key'])}={match['prompts']}")
    ),
}
"""verl's commonest refusals → what to type."""


def _two_kls(config: DictConfig) -> Iterator[Finding]:
    key = "algorithm.use_kl_in_reward"
    if setting(config, key) and setting(config, f"{ACTOR}.use_kl_loss"):
        why = f"{ACTOR}.use_kl_loss is true, too, so the KL counts twice"
        yield Finding("verl", Severity.WARNING, Problem(key, True, Line(f"{key}=false"), why))


def _large_rank(config: DictConfig) -> Iterator[Finding]:
    if setting(config, "actor_rollout_ref.rollout.name") == "vllm":
        for key in _LORA_RANKS:
            rank = setting(config, key)
            if isinstance(rank, int) and rank > LARGEST_RANK:
                valid = f"at most {LARGEST_RANK} in vLLM"
                yield _refused(Problem(key, rank, Line(f"{key}={LARGEST_RANK}"), valid=valid))


def _separate_async(config: DictConfig) -> Iterator[Finding]:
    """Yield what verl's trainer asserts when it starts."""
    if not str(setting(config, "trainer.v1.trainer_mode")).endswith("separate_async"):
        return
    key, steps = f"{ACTOR}.ppo_mini_batch_size", config.trainer.v1.separate_async.parameter_sync_step
    prompts, mini_batch = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if prompts != steps * mini_batch:
        why = f"verl's separate_async trainer wants {key} · parameter_sync_step, {mini_batch} · {steps}"
        follows = OmegaConf.is_interpolation(config.actor_rollout_ref.actor, "ppo_mini_batch_size")
        one_part = "trainer.v1.separate_async.parameter_sync_step=1"
        fix = Line(one_part if follows else f"data.train_batch_size={steps * mini_batch}")
        yield _refused(Problem("data.train_batch_size", prompts, fix, why=why))


def exit_status(found: Sequence[Finding]) -> int:
    """Return the doctor's exit status: 0 for no finding or notes, 1 for warnings, 2 for errors."""
    severities = {each.severity for each in found}
    if Severity.ERROR in severities:
        return _WRONG
    return _WARNED if Severity.WARNING in severities else _CLEAN


def print_findings(found: Sequence[Finding], console: Console) -> None:
    """Print each finding with its line to type, and how many there are."""
    for each in found:
        style = _STYLES[each.severity]
        console.print(f"{each.severity.value} {each.check}", style=style)
        console.print(f"  {each.problem.reason}")
        if each.problem.fix:
            console.print(f"  type: {each.problem.fix}")
    console.print(f"findings: {len(found)}")
