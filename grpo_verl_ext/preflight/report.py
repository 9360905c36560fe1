"""Report on a training: all problems, ours and what verl itself says, and what it would do of its preset."""

import math
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from grpo_verl_ext import preflight
from grpo_verl_ext.catalogue import PRESETS, STATISTIC_ENGINES, loss_of, wiring
from grpo_verl_ext.catalogue.requires import OUR_MODES, runs_v1
from grpo_verl_ext.preflight import values
from grpo_verl_ext.proof import differing, verls_defaults
from grpo_verl_ext.proof.gradient import changed
from grpo_verl_ext.proof.judge import unread
from grpo_verl_ext.utils import keys
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.errors import Finding, Line, Problem, Severity, as_typed
from grpo_verl_ext.utils.keys import ACTOR, MODE, ROLLOUT, setting, written
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin import usage
from grpo_verl_ext.verl_plugin.compose import nearest_line
from grpo_verl_ext.verl_plugin.mini_batch import plan
from grpo_verl_ext.verl_plugin.wire import StatisticSource

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold"}
_INSTANTIATED = re.compile(
    r"Error in call to target '[^']+':\s\w+\((['\"])(?P<said>.*)\1\)\sfull_key: (?P<key>\S+)", re.S
)
"""Matches Hydra's message for what a configuration's class refuses."""


def findings_with_verls(config: DictConfig, words: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings of our checks, and what verl itself says beyond them.

    Of values that verl cannot read or calculate with it would raise Python's own errors, and is not asked.
    """
    found = list(preflight.findings(config, words))
    yield from found
    if any(each.severity is Severity.ERROR for each in values.wrong(config)):
        return
    yield from unread(config, words)
    refused = {each.problem.key.rpartition(".")[2] for each in found if each.severity is Severity.ERROR}
    if all(type(setting(config, key)) is int for key in (*values.COUNTS, f"{ROLLOUT}.n")):
        for each in _by_verl(config):
            if not any(re.search(rf"\b{name}\b", each.problem.reason) for name in refused - {""}):
                yield each


def _by_verl(config: DictConfig) -> Iterator[Finding]:
    """Yield what verl's validation says, which in a training follows our checks, and its trainer's start."""
    verls: object = getattr(validate_config, "__wrapped__", validate_config)
    assert callable(verls)
    # For them verl imports vLLM, which may be missing.
    lora_ranks = ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank")
    copy = changed(config, {key: 0 for key in lora_ranks if OmegaConf.select(config, key)})
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Disabled critic")  # as every algorithm but PPO does
            verls(copy, need_reference_policy(copy), need_critic(copy))
            if setting(copy, "distillation.enabled"):
                omega_conf_to_dataclass(copy.distillation)  # the trainer does, after it has started workers
    except (AssertionError, ValueError, TypeError, OmegaConfBaseException, HydraException) as error:
        yield Finding("verl", Severity.ERROR, _refusal(str(error), config))


def _refusal(message: str, config: DictConfig) -> Problem:
    """Return a refusal of verl's in its own words, with the line to type where it is a common one."""
    built = _INSTANTIATED.fullmatch(message.strip())
    key, said = (built["key"], built["said"]) if built else ("", message)
    seen = f"verl refuses the configuration: {' '.join(said.split())}"
    if unexpected := re.search(r"got an unexpected keyword argument '(?P<name>\w+)'", said):
        key = f"{key}.{unexpected['name']}"
        value = setting(config, key)
        near = nearest_line(config, key, value)
        return Problem(key, value, Line(f"~{key}", *filter(None, [near])), seen=seen)
    line = ""
    if missing := re.search(r"set at least one of '[\w.]+' or '(?P<key>[\w.]+)'", said):
        named = missing["key"]  # without the first section of the actor's
        dynamic = "critic" if named.startswith("critic.") else ACTOR
        full = f"actor_rollout_ref.{named}" if named.startswith("actor.") else named
        line = Line(f"{full}=1", more=f", or {dynamic}.use_dynamic_bsz=true")
    if size := re.search(r"must be divisible by minimal possible batch size \((?P<least>\d+)\)", said):
        least = int(size["least"])
        prompts = least // math.gcd(least, config.actor_rollout_ref.rollout.n)
        line = Line(f"data.train_batch_size={math.ceil(config.data.train_batch_size / prompts) * prompts}")
    return Problem(key, None, line, seen=seen)


def exit_status(found: Sequence[Finding]) -> int:
    """Return the doctor's exit status: 0 for no finding or notes, 1 for warnings, 2 for errors."""
    statuses = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}
    return max((statuses[each.severity] for each in found), default=0)


def print_findings(found: Sequence[Finding], console: Console) -> None:
    """Print each finding with its line to type, and how many there are."""
    for each in found:
        console.print(f"{each.severity.value} {each.check}", style=_STYLES[each.severity])
        console.print(f"  {each.problem.reason}")
        if each.problem.fix:
            console.print(f"  type: {each.problem.fix}")
    console.print(f"findings: {len(found)}")


def report(config: DictConfig) -> int:
    """Print what is known of a training and return the doctor's exit status."""
    console = make_console()
    if not any(usage.used_settings(config)):
        console.print("this training names nothing of grpo_verl_ext")
        return 0
    words = list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []
    with redirect_stdout(sys.stderr):  # verl prints while it validates
        found = list(findings_with_verls(config, words))
    print_findings(found, console)
    always = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs")
    numbers, count = {key: setting(config, key) for key in always}, "not known"
    numbers |= [plan.parts_of_step(config)]
    if keys.FULLY_ASYNC not in config and all(is_count(number) for number in numbers.values()):
        prompts, mini_batch, epochs, parts = numbers.values()
        count = str(parts * max(1, -(-(prompts // parts) // mini_batch)) * epochs)
    shown = (f"{key}={as_typed(value)}" for key, value in numbers.items() if key in always or value != 1)
    console.print(f"updates per rollout: {count} ({', '.join(shown)})")
    console.print(f"responses that an update needs together: {_meeting(config)}")
    preset = written(config.algorithm).get("preset")
    if preset in PRESETS:
        console.print(f"preset {preset} sets (verl's default → value now):")
        defaults, replaced = verls_defaults(), differing(config)
        for key in PRESETS[preset].leaves:
            default, now = (as_typed(setting(each, key)) for each in (defaults, config))
            section, _, name = key.rpartition(".")
            if default != now:
                default = default if name in setting(defaults, section, {}) else "no key of verl's"
                own = f" (the preset has {as_typed(replaced[key][0])})" if key in replaced else ""
                console.print(f"  {key}: {default} → {now}{own}")
        # Words of the command that replace a value which makes the preset's algorithm.
        ours = {key for key in (MODE, keys.AGENT_LOOP) if str(setting(config, key)).startswith(usage.PREFIX)}
        leaves = sorted(replaced.keys() - wiring(preset) - ours)
        for word in words:
            key = keys.moved_key(keys.key_of(word))
            for leaf in (each for each in leaves if f"{each}.".startswith(f"{key}.")):
                own = ("" if leaf == key else f"{leaf}=") + as_typed(replaced[leaf][0])
                console.print(f"delete from the script: {word} (the preset has {own})")
    return exit_status(found)


def _meeting(config: DictConfig) -> str:
    """Return where the loss gets what it needs of other responses than those of its micro-batch."""
    loss, mode = loss_of(config), setting(config, MODE)
    if loss is None or loss.needs is None:
        return "not needed"
    if not runs_v1(config) or mode not in OUR_MODES:
        return f"not seen to by this trainer ({MODE}={mode})"
    actor, trainer = config.actor_rollout_ref.actor, config.trainer
    parallel = setting(config, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size", 1)
    counts = (trainer.nnodes, trainer.n_gpus_per_node, parallel, actor.ppo_mini_batch_size)
    if not all(is_count(number) for number in (*counts, setting(config, f"{ROLLOUT}.n"))):
        return "not known without numbers of nodes, GPUs, prompts and responses"
    ranks = max(1, trainer.nnodes * trainer.n_gpus_per_node // parallel)
    cut = plan.Cut.from_config(config, ranks, of_prompts=loss.needs.of_prompts)
    if not plan.policy_moves(config):
        return f"{cut.rows}; no forward pass, for the only update on a rollout has their log-probs"
    if cut.engine not in STATISTIC_ENGINES:
        return f"{cut.rows}, not measured between the updates with {ACTOR}.strategy={cut.engine}"
    where = {
        StatisticSource.MICRO_BATCH: "in one micro-batch",
        StatisticSource.RANKS: "in the micro-batches of all ranks",
        StatisticSource.FORWARD_PASS: "by one more forward pass before each later update (exact, but slower)",
    }
    chosen = cut.plan()
    return f"{cut.rows}, {where[chosen.source]}: {chosen.reason}"
