"""Report on the training that a script would start, in place of starting it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.catalogue import PRESETS, STATISTIC_ENGINES, loss_of, wiring
from grpo_verl_ext.catalogue.requires import runs_v1
from grpo_verl_ext.preflight.values import verls_defaults
from grpo_verl_ext.preflight.with_verls import exit_status, findings_with_verls, print_findings
from grpo_verl_ext.proof import differing
from grpo_verl_ext.utils import keys
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.errors import as_typed
from grpo_verl_ext.utils.keys import ACTOR, MODE, ROLLOUT, setting, written
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin import usage
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES
from grpo_verl_ext.verl_plugin.mini_batch import plan
from grpo_verl_ext.verl_plugin.wire import StatisticSource


def report(config: DictConfig) -> int:
    """Print what is known of a training and return the doctor's exit status."""
    console = make_console()
    if not usage.uses_package(config):
        console.print("this training names nothing of grpo_verl_ext")
        return 0
    with redirect_stdout(sys.stderr):  # verl prints while it validates
        found = list(findings_with_verls(config))
    print_findings(found, console)
    console.print(updates(config))
    console.print(f"responses that must meet in an update: {meeting(config)}")
    preset = written(config.algorithm).get("preset")
    if preset in PRESETS:
        console.print(f"+algo={preset} sets, verl's default → the value now:")
        defaults, replaced = OmegaConf.create(verls_defaults()), differing(config)
        for key in PRESETS[preset].leaves:
            default, now = (as_typed(setting(each, key)) for each in (defaults, config))
            if default != now:
                own = f" ({preset} has {as_typed(replaced[key][0])})" if key in replaced else ""
                console.print(f"  {key}: {default} → {now}{own}")
        for line in _to_delete(preset, config, replaced):
            console.print(line)
    return exit_status(found)


def _to_delete(preset: str, config: DictConfig, replaced: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Yield a line for each word of the command that replaces a value which makes the preset's algorithm."""
    ours = {key for key in (MODE, keys.AGENT_LOOP) if str(setting(config, key)).startswith(usage.PREFIX)}
    leaves = sorted(replaced.keys() - wiring(preset) - ours)
    for word in HydraConfig.get().overrides.task if HydraConfig.initialized() else ():
        key = keys.moved_key(keys.key_of(word))
        for leaf in leaves:
            if leaf == key or leaf.startswith(f"{key}."):
                own = ("" if leaf == key else f"{leaf}=") + as_typed(replaced[leaf][0])
                yield f"delete from the script: {word} ({preset} has {own})"


def updates(config: DictConfig) -> str:
    """Return how many updates a rollout is used for, with the numbers that say so."""
    always = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs")
    numbers = {key: setting(config, key) for key in always} | {
        plan.parts_of_step_key(config): plan.parts_of_step(config)
    }
    count = "not known"
    if keys.FULLY_ASYNC not in config and all(is_count(number) for number in numbers.values()):
        prompts, mini_batch, epochs, parts = numbers.values()
        count = str(parts * max(1, -(-(prompts // parts) // mini_batch)) * epochs)
    shown = (f"{key}={as_typed(value)}" for key, value in numbers.items() if key in always or value != 1)
    return f"updates per rollout: {count} ({', '.join(shown)})"


def meeting(config: DictConfig) -> str:
    """Return where the loss gets what it needs of other responses than those of its micro-batch."""
    loss, mode = loss_of(config), setting(config, MODE)
    if loss is None or loss.needs is None:
        return "not needed"
    if not runs_v1(config) or mode not in TRAINER_MODES:
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
    chosen = plan.choose(cut)
    where = {
        StatisticSource.MICRO_BATCH: "in one micro-batch",
        StatisticSource.RANKS: "in the micro-batches of all ranks",
        StatisticSource.FORWARD_PASS: "in another forward pass before each later update",
    }
    return f"{cut.rows}, {where[chosen.source]}: {chosen.reason}"
