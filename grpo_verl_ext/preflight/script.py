"""Report on the training that a script would start, in place of starting it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.catalogue import PRESETS, STATISTIC_ENGINES, left_to_user, loss_of
from grpo_verl_ext.preflight.names import differing
from grpo_verl_ext.preflight.training import driver
from grpo_verl_ext.preflight.with_verls import exit_status, findings_with_verls, print_findings
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.errors import as_typed
from grpo_verl_ext.utils.keys import ACTOR, AGENT_LOOP, MODE, ROLLOUT, key_of, moved_key, setting
from grpo_verl_ext.utils.options import is_count
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES, written
from grpo_verl_ext.verl_plugin.mini_batch import plan
from grpo_verl_ext.verl_plugin.usage import PREFIX
from grpo_verl_ext.verl_plugin.wire import StatisticSource

_ABSENT = "no such key"


def report(config: DictConfig) -> int:
    """Print what is known of a training that uses this package and return the doctor's exit status.

    No configuration can be composed in this process by the training's own Hydra any more.
    """
    with redirect_stdout(sys.stderr):  # verl prints while it validates
        GlobalHydra.instance().clear()  # the training's own, which refuses another
        defaults = composed([])
        found = list(findings_with_verls(config, defaults))
    console = make_console()
    print_findings(found, console)
    for line in (updates(config), other_responses(config), *changed(config, defaults), *to_delete(config)):
        console.print(line)
    return exit_status(found)


def updates(config: DictConfig) -> str:
    """Return how many updates a rollout is used for, with the numbers that say so."""
    keys = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs")
    numbers = [setting(config, key) for key in keys]
    parts, parts_key = plan.parts_of_step(config), plan.parts_of_step_key(config)
    terms = [f"{key}={as_typed(number)}" for key, number in zip(keys, numbers, strict=True)]
    terms += [f"{parts_key}={parts}"] * (parts != 1)
    if driver(config) == "fully async" or not all(is_count(number) for number in (*numbers, parts)):
        return f"updates per rollout: not known from {', '.join(terms)}"
    prompts, mini_batch, epochs = numbers
    count = parts * max(1, -(-(prompts // parts) // mini_batch)) * epochs
    return f"updates per rollout: {count} ({', '.join(terms)})"


def other_responses(config: DictConfig) -> str:
    """Return where the loss gets what it needs of other responses than those of its micro-batch."""
    return f"responses that must meet in an update: {_meeting(config)}"


def _meeting(config: DictConfig) -> str:
    loss, mode = loss_of(config), setting(config, MODE)
    if loss is None or loss.needs is None:
        return "not needed"
    if driver(config) != "v1" or mode not in TRAINER_MODES:
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


def changed(config: DictConfig, defaults: DictConfig) -> Iterator[str]:
    """Yield a line for each key of the named preset whose value is another than verl's default."""
    preset = _preset(config)
    if preset is None:
        return
    replaced = differing(config)
    yield f"+algo={preset} sets, verl's default → the value now:"
    for key in PRESETS[preset].leaves:
        default, now = _shown(defaults, key), _shown(config, key)
        if default != now:
            own = f" ({preset} has {as_typed(replaced[key][0])})" if key in replaced else ""
            yield f"  {key}: {default} → {now}{own}"


def to_delete(config: DictConfig) -> Iterator[str]:
    """Yield a line for each word of the command that replaces a value which makes the preset's algorithm."""
    preset = _preset(config)
    if preset is None or not HydraConfig.initialized():
        return
    free, values = left_to_user(preset), differing(config)
    for word in HydraConfig.get().overrides.task:
        key = moved_key(key_of(word))
        is_own = key in (MODE, AGENT_LOOP) and str(setting(config, key)).startswith(PREFIX)
        for leaf, (own, _) in values.items():
            if (leaf == key or leaf.startswith(f"{key}.")) and leaf not in free and not is_own:
                section = "" if leaf == key else f"{leaf}="
                yield f"delete from the script: {word} ({preset} has {section}{as_typed(own)})"


def _preset(config: DictConfig) -> str | None:
    name = written(config.algorithm).get("preset")
    return str(name) if name in PRESETS else None


def _shown(config: DictConfig, key: str) -> str:
    section, _, name = key.rpartition(".")
    if name not in (OmegaConf.select(config, section) or {}):
        return _ABSENT
    value = setting(config, key)
    return as_typed(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)
