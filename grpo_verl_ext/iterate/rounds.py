"""Check the settings before the first round, run the rounds, and print them.

A round trains the policy, collects pairs and trains the reward model. Each part writes files that appear
complete or not at all, and returns results for ``manifest.json``, which is rewritten atomically after each of
them. A part that the manifest has is not run again.
"""

import inspect
import json
import random
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from grpo_verl_ext import catalogue, preflight
from grpo_verl_ext.catalogue.grpo import GRPO, GRPO_PROCESS
from grpo_verl_ext.catalogue.requires import AtLeast, In
from grpo_verl_ext.iterate import reward_training
from grpo_verl_ext.iterate.examples import Pair, Rule, Steps, split_by_prompt, write_examples
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, Round
from grpo_verl_ext.rewards import functions
from grpo_verl_ext.runs.child_process import run_logged
from grpo_verl_ext.runs.provenance import git_revision, versions
from grpo_verl_ext.runs.verl_run import Response, read_dump
from grpo_verl_ext.tasks.chain_sum.prepare import prepare_missing
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.documents import Document, leaves, read_if_there
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.files import alone_in, appearing, write_whole
from grpo_verl_ext.utils.keys import ACTOR, REWARD_MANAGER
from grpo_verl_ext.verl_plugin.compose import composed
from grpo_verl_ext.verl_plugin.usage import own_task

_MANIFEST = "manifest.json"
_SAVED = (
    *(
        In(f"actor_rollout_ref.model.{key}", (off, None), "verl does not save in a Hugging Face folder")
        for key, off in (("lora_rank", 0), ("lora.rank", 0), ("lora_adapter_path", None))
    ),
    In(f"{ACTOR}.strategy", ("fsdp2", "fsdp"), "saves no such folder of the policy"),
    AtLeast("trainer.save_freq", 1, "saves no policy for the next round"),
)
_MANAGER = In(
    "reward.reward_manager.name",
    ("naive", REWARD_MANAGER),
    f"is replaced by {REWARD_MANAGER} in rounds with a reward model, unless reward_model.weight=0",
)


def compose_rounds(settings: IterateSettings) -> DictConfig:
    """Compose verl's configuration of every round, and return that of the first.

    Refuses what verl would refuse, and a policy that no later round could begin with or learn from.
    """
    numbers = range(1, settings.rounds + 1)
    try:
        rounds = [composed(Round(settings, number).run().arguments()) for number in numbers]
        own = composed([*settings.policy.overrides])
    except SettingError as error:
        raise IterateError(f"policy.overrides: verl refuses them: {error}") from error
    asks_model = any(config.reward.reward_manager.name == REWARD_MANAGER for config in rounds)
    for row, config in [*((row, rounds[0]) for row in _SAVED), *[(_MANAGER, own)] * asks_model]:
        if found := row.unmet("iterate", config):
            raise IterateError(f"policy.overrides: {found.problem}")
    if "hf_model" not in (saved := rounds[0].actor_rollout_ref.actor.checkpoint.save_contents):
        seen = f"{ACTOR}.checkpoint.save_contents is {saved}, without a policy for the next round"
        raise IterateError(f"policy.overrides: {seen}. Add hf_model to it")
    label, preset = ("label", GRPO) if settings.reward_model.label else ("step_label", GRPO_PROCESS)
    if asks_model and catalogue.learns_from_steps(own) != (preset is GRPO_PROCESS):
        seen = f"policy.overrides: algorithm.adv_estimator is {own.algorithm.adv_estimator}, which learns "
        seen += f"nothing from the model of reward_model.{label}"
        raise IterateError(f"{seen}. Type: +algo@_global_={preset.name}")
    return rounds[0]


def checked_rule(settings: IterateSettings, config: DictConfig) -> Rule:
    """Import the rule, try it once, and return it; refuse what TRL or verl's driver would refuse later.

    ``config`` is verl's of the first round, whose models and data exist.
    """
    reward = settings.reward_model
    kind: type[Pair | Steps] = Pair
    key, name, valid = "reward_model.label", reward.label, "rules.correctness"
    if steps := reward.step_label is not None:
        kind, key, name, valid = Steps, "reward_model.step_label", reward.step_label, "steps.compute_score"
    try:
        _, fields = reward_training.of_trl(reward.trainer, steps=steps, output_dir="", seed=0)
        inspect.signature(fields.func).bind(**fields.keywords)
    except TypeError as error:
        said = f"reward_model.trainer does not fit TRL's {'PRM' if steps else 'Reward'}Config: {error}"
        raise IterateError(f"{said}. Remove the line") from error
    if reward.replay_from:
        kind.read(Path(reward.replay_from))
    try:
        rule = functions.load_function(str(name))
        kind.made([Response("", "1+1=?", "", "0", 0.0, 1)], rule, per_prompt=1, seed=0)
    except Exception as error:
        seen = f"{key} is {name!r}, which cannot be run on an empty response: {error}"
        fix = f"{key}=grpo_verl_ext.rewards.{valid}, or a function of your own like it"
        raise IterateError(f"{seen}. Type: {fix}") from error
    try:
        preflight.check_training(config)
    except (ValueError, OmegaConfBaseException) as error:
        raise IterateError(f"policy.overrides: {error}") from error
    return rule


@dataclass
class _RoundRecord:
    """A round; a part has its own commit and versions where they are not those at the round's beginning."""

    round: int
    seed: int
    overrides: list[str]
    git_revision: str | None
    versions: dict[str, str]
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class IterateManifest(Document):
    """Settings and rounds; without times, so that a run that was killed and resumed has the same manifest."""

    settings: dict[str, Any]
    rounds: list[_RoundRecord] = field(default_factory=list)
    format: Literal[2] = 2

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "IterateManifest":
        """Return the folder's manifest, or a new one; refuse one that was begun with other settings.

        Only ``rounds`` may differ, and until a round has trained a reward model, how TRL trains it.
        """
        file, then = folder / _MANIFEST, "type folder=<a new folder>"
        manifest = read_if_there(file, cls, IterateError, "a manifest", then) or cls(settings)
        both = (manifest.settings, settings)
        before, now = ({key: value for key, value in leaves(each) if value != {}} for each in both)
        is_trained = any("reward_model" in each.parts for each in manifest.rounds)
        may_differ = ("rounds", *(() if is_trained else ("reward_model.trainer.", "reward_model.launcher")))
        for key in before | now:
            if before.get(key) != now.get(key) and not key.startswith(may_differ):
                seen = f"another {key}: {before.get(key)!r} there, {now.get(key)!r} now"
                fix = "Type folder=<a new folder>, or the old value"
                raise IterateError(f"{file} was begun with {seen}. {fix}")
        manifest.settings = settings
        return manifest


def _train_policy(this: Round, _config: DictConfig, _rule: Rule) -> dict[str, Any]:
    """Run verl's trainer for M steps from the policy of the round before, which is also the reference."""
    run = this.run()
    if not run.is_finished():
        start = Round(this.settings, this.number - 1).model
        if this.number > 1 and not ((start / "config.json").is_file() and [*start.glob("*.safetensors")]):
            lost = "which verl saved at the end of the round and this one begins with"
            raise IterateError(f"{start} has no policy, {lost}; type folder=<a new folder>")
        run.go()
    metrics = run.metrics()
    before, after = (
        {key: value for key, value in sorted(metrics.get(step, {}).items()) if key.startswith("val-core/")}
        for step in (0, run.steps)
    )
    return {"validation_before": before, "validation_after": after}


def _collect_pairs(this: Round, _config: DictConfig, rule: Rule) -> dict[str, Any]:
    """Make pairs, or labelled steps, from this round's rollouts, and replay some of all earlier rounds'.

    n new ones are joined by n · share / (1 − share), drawn without replacement, or by all that there are.
    """
    reward, run = this.settings.reward_model, this.run()
    steps = range(1, run.steps + 1)
    # A file is missing where a training was killed between its checkpoint and its dump.
    files = {step: file for step in steps if (file := run.rollouts / f"{step}.jsonl").is_file()}
    if not files:
        seen = f"{run.rollouts} has no rollouts of steps 1 … {run.steps}"
        raise IterateError(f"{seen}; was trainer.rollout_data_dir overridden?")
    responses = [each for file in files.values() for each in read_dump(file)]
    kind: type[Pair | Steps] = Pair if reward.step_label is None else Steps
    pairs = kind.made(responses, rule, per_prompt=reward.pairs_per_prompt, seed=this.seed)
    earlier = [pair for file in this.replayable for pair in kind.read(file)]
    # The run's seed, not the round's: a held-out prompt is held out in every round, also of another run's.
    (train, held_out), (history, _) = (
        split_by_prompt(each, held_out=reward.held_out, seed=this.settings.seed) for each in (pairs, earlier)
    )
    wanted = min(round(len(train) * reward.replay / (1 - reward.replay)), len(history))
    replay = random.Random(f"replay/{this.seed}").sample(history, wanted)
    write_examples(this.training_pairs, train)
    write_examples(this.held_out_pairs, held_out)
    write_examples(this.mixture, [*train, *replay])
    counts = {"pairs": len(train), "replayed": len(replay), "held_out": len(held_out)}
    missing = [step for step in steps if step not in files]
    return {"responses": len(responses), "steps_without_rollouts": missing, **counts}


def _train_model(this: Round, config: DictConfig, _rule: Rule) -> dict[str, Any]:
    """Train the reward model of the round before with TRL's RewardTrainer, or PRMTrainer for steps."""
    reward, model = this.settings.reward_model, this.own_reward_model
    if this.mixture.stat().st_size == 0:
        return {"held_out_accuracy_before": None, "held_out_accuracy_after": None}
    if not model.exists():
        with appearing(model) as target:
            start = this.reward_model_before or config.actor_rollout_ref.model.path
            files = {"train": this.mixture, "held_out": this.held_out_pairs, "target": target, "start": start}
            asked = {"seed": this.seed, "trainer": reward.trainer, "steps": reward.step_label is not None}
            file = this.folder / "reward_training.json"
            write_whole(file, json.dumps(files | asked, indent=2, default=str) + "\n")
            command = [*(reward.launcher or (sys.executable, "-m")), reward_training.__name__, str(file)]
            run_logged(command, file.with_suffix(".log"))
    return dict(json.loads((model / "results.json").read_text()))


PARTS: dict[str, Callable[[Round, DictConfig, Rule], dict[str, Any]]] = {
    "policy": _train_policy,
    "pairs": _collect_pairs,
    "reward_model": _train_model,
}
"""What each round does, in order, with verl's configuration of round 1 and the rule that labels responses."""


def run_rounds(settings: IterateSettings, config: DictConfig, rule: Rule) -> IterateManifest:
    """Run all parts of all rounds that are not done yet, print the name of each, and return the manifest."""
    console, folder = make_console(), Path(settings.folder)
    with alone_in(folder, IterateError):
        manifest = IterateManifest.read(folder, asdict(settings))
        for number in range(1, settings.rounds + 1):
            this = Round(settings, number)
            now: dict[str, Any] = {"git_revision": git_revision(), "versions": versions()}
            this.folder.mkdir(exist_ok=True)
            if len(manifest.rounds) < number:
                manifest.rounds.append(_RoundRecord(number, this.seed, [*this.run().overrides], **now))
            record = manifest.rounds[number - 1]
            changed = {key: value for key, value in now.items() if value != getattr(record, key)}
            # without a part first: the settings of a round that is killed are known when it is resumed
            for name in (None, *PARTS):
                if name is not None and name not in record.parts:
                    console.print(f"round {number}: {name}; {this.folder} has the output")
                    record.parts[name] = PARTS[name](this, config, rule) | changed
                text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n"
                write_whole(folder / _MANIFEST, text)
    return manifest


def print_rounds(settings: IterateSettings) -> None:
    """Print the parts of each round, which of them are done, and verl's command line."""
    console = make_console()
    manifest = IterateManifest.read(Path(settings.folder), asdict(settings))
    done = {record.round: record.parts for record in manifest.rounds}
    for number in range(1, settings.rounds + 1):
        this = Round(settings, number)
        console.print(f"\nround {number}, seed {this.seed}, in {this.folder}", style="bold")
        for name in PARTS:
            console.print(f"  {'done ' if name in done.get(number, {}) else 'to do'}  {name}")
        console.print("  python3 " + shlex.join(this.run().command()))


def run_iterate(settings: IterateSettings) -> None:
    """Check the settings, run all rounds, and print a table: a column each, of the policy verl's val-core."""
    console = make_console()
    config = compose_rounds(settings)
    prepare_missing(own_task(config))
    rule = checked_rule(settings, config)
    console.print(Round(settings, 1).run().ray.words)
    done = run_rounds(settings, config, rule).rounds
    table = pandas.json_normalize([record.parts for record in done]).T
    names = [f"round {record.round}" for record in done]
    console.print(table.to_string(header=names, float_format="{:.3f}".format, na_rep="–"))
    console.print(f"{Path(settings.folder) / _MANIFEST}")
