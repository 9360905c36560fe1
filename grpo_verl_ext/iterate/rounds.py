"""Run the rounds: train the policy, merge it, measure it, collect pairs, train the reward model.

Each part writes files that appear complete or not at all, and returns results for ``manifest.json``, which is
rewritten atomically after each of them. A part that the manifest has is not run again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext.iterate import kl_to_first, reward_training
from grpo_verl_ext.iterate.examples import (
    Pair,
    Rule,
    Steps,
    make_pairs,
    make_steps,
    read_examples,
    read_rollouts,
    replayed,
    split_by_prompt,
    write_examples,
)
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, Round
from grpo_verl_ext.runs.child_process import run_logged
from grpo_verl_ext.runs.provenance import git_revision, versions
from grpo_verl_ext.utils.documents import Document, DocumentError, leaves, read_json
from grpo_verl_ext.utils.files import alone_in, appearing, write_whole

_FORMAT = 1
_MANIFEST = "manifest.json"


@dataclass
class RoundRecord:
    """The record of one round.

    Attributes:
        overrides: verl's command line.
        parts: results of the finished parts, in order; with their commit and versions where the round was
            resumed with others than it was begun with.
    """

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
    rounds: list[RoundRecord] = field(default_factory=list)
    format: int = _FORMAT

    def write(self, folder: Path) -> None:
        """Replace the file."""
        write_whole(folder / _MANIFEST, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    def finished(self, number: int, part: str) -> bool:
        """Whether this part of this round is done."""
        return len(self.rounds) >= number and part in self.rounds[number - 1].parts


def read_manifest(folder: Path, settings: dict[str, Any]) -> IterateManifest:
    """Return the folder's manifest, or a new one.

    Only ``rounds`` may differ from the settings with which it was begun, for more rounds continue the run,
    and settings of a part that no round has finished.

    Raises:
        IterateError: it cannot be read, or it was begun with other settings.
    """
    file = folder / _MANIFEST
    if not file.exists():
        return IterateManifest(settings)
    try:
        manifest = read_json(file, IterateManifest)
        if manifest.format != _FORMAT:
            raise DocumentError(f"it has format {manifest.format}, this version reads {_FORMAT}")
    except DocumentError as error:
        raise IterateError(
            f"{file} is not a manifest ({error}). It was left in place; type folder=<a new folder>"
        ) from error
    before, now = (
        {key: value for key, value in leaves(each) if value != {}} for each in (manifest.settings, settings)
    )
    for key in before | now:
        of_part = next((part for begin, part in _OF_PARTS.items() if key.startswith(begin)), None)
        is_unread = of_part is not None and all(of_part not in each.parts for each in manifest.rounds)
        if before.get(key) != now.get(key) and key != "rounds" and not is_unread:
            raise IterateError(
                f"{file} was begun with another {key}: {before.get(key)!r} there, {now.get(key)!r} now. "
                f"Type folder=<a new folder>, or the old value"
            )
    manifest.settings = settings
    return manifest


_OF_PARTS = {
    "measure.": "measure",
    "reward_model.trainer.": "reward_model",
    "reward_model.launcher": "reward_model",
}
"""Beginnings of settings → the only part that reads them."""


_Part = Callable[[Round, DictConfig, Rule], dict[str, Any]]
"""Arguments: the round, verl's configuration of round 1, the function that labels responses."""


def _train_policy(this: Round, _config: DictConfig, _rule: Rule) -> dict[str, Any]:
    """Run verl's trainer for M steps from the policy of the round before, which is also the reference."""
    run = this.run()
    if not run.is_finished():
        run.go()
    metrics = run.metrics()
    before, after = (
        {name: value for name, value in sorted(metrics.get(step, {}).items()) if name.startswith("val-core/")}
        for step in (0, run.steps)
    )
    first, last = (metrics.get(step, {}).get("critic/score/mean") for step in (1, run.steps))
    return {
        "steps": run.steps,
        "validation_before": before,
        "validation_after": after,
        "score_first_step": first,
        "score_last_step": last,
    }


def _merge_policy(this: Round, _config: DictConfig, _rule: Rule) -> dict[str, Any]:
    """Convert the last checkpoint to a Hugging Face folder with verl's merger."""
    if not this.model.exists():
        with appearing(this.model) as target:
            checkpoint = str(this.run().last_checkpoint / "actor")
            words = ["merge", "--backend", "fsdp", "--local_dir", checkpoint, "--target_dir", str(target)]
            _run_module("verl.model_merger", words, this.folder / "merge.log")
    return {}


def _measure_policy(this: Round, config: DictConfig, _rule: Rule) -> dict[str, Any]:
    """Measure the KL to the first policy, in nats per response."""
    from verl.utils.config import omega_conf_to_dataclass

    from grpo_verl_ext.verl_plugin.measure.data import first_rows

    settings = this.settings.measure
    if settings.prompts == 0:
        return {"kl_to_first": None}
    files, model = config.data.val_files, omega_conf_to_dataclass(config.actor_rollout_ref.model)
    rows = first_rows(files, settings.prompts, model.tokenizer, config)
    chats = [list(map(dict, row["raw_prompt"])) for row in rows]
    if not chats:
        raise IterateError(f"data.val_files={files} has no row to measure the policy on")
    result = this.folder / "divergence.json"
    job = {
        "policy": str(this.model),
        "first": str(config.actor_rollout_ref.model.path),
        "chats": chats,
        "batch_size": settings.batch_size,
        "max_response_tokens": int(config.data.max_response_length),
        "template": dict(config.data.get("apply_chat_template_kwargs") or {}),
        "seed": this.seed,
        "result": str(result),
    }
    _run_job(kl_to_first.__name__, job, this.folder / "divergence_job")
    return dict(json.loads(result.read_text()))


def collect_pairs(this: Round, _config: DictConfig, rule: Rule) -> dict[str, Any]:
    """Make pairs from this round's rollouts, labelled by the rule, and replay pairs of all earlier rounds.

    ``replay_from`` counts as an earlier round. With ``step_label`` a "pair" is the labelled steps of one
    response.
    """
    reward = this.settings.reward_model
    kind, make = (Pair, make_pairs) if reward.step_label is None else (Steps, make_steps)
    responses, missing = read_rollouts(this.rollouts, this.settings.policy.steps)
    pairs = make(responses, rule, per_prompt=reward.pairs_per_prompt, seed=this.seed)
    earlier = [pair for file in this.replayable for pair in read_examples(file, kind)]
    # The run's seed, not the round's: a held-out prompt is held out in every round, also of another run's.
    (train, held_out), (history, _) = (
        split_by_prompt(each, held_out=reward.held_out, seed=this.settings.seed) for each in (pairs, earlier)
    )
    replay = replayed(len(train), history, share=reward.replay, seed=this.seed)
    write_examples(this.training_pairs, train)
    write_examples(this.held_out_pairs, held_out)
    write_examples(this.mixture, [*train, *replay])
    return {
        **{"responses": len(responses), "steps_without_rollouts": missing},
        **{"pairs": len(train), "replayed": len(replay), "held_out": len(held_out)},
    }


def _train_reward_model(this: Round, config: DictConfig, _rule: Rule) -> dict[str, Any]:
    """Train the reward model of the round before with TRL's RewardTrainer, or PRMTrainer for steps."""
    reward, model = this.settings.reward_model, this.own_reward_model
    if this.mixture.stat().st_size == 0:
        return {"held_out_accuracy_before": None, "held_out_accuracy_after": None}
    if not model.exists():
        with appearing(model) as target:
            job = {
                "start": this.before.reward_model or str(config.actor_rollout_ref.model.path),
                "train": str(this.mixture),
                "held_out": str(this.held_out_pairs),
                "target": str(target),
                "seed": this.seed,
                "trainer": reward.trainer,
                "steps": reward.step_label is not None,
            }
            _run_job(reward_training.__name__, job, this.folder / "reward_training", reward.launcher)
    return dict(json.loads((model / "results.json").read_text()))


PARTS: dict[str, tuple[str, _Part]] = {
    "policy": ("verl trains the policy", _train_policy),
    "model": ("verl's merger makes a Hugging Face folder of it", _merge_policy),
    "measure": ("KL to the first policy", _measure_policy),
    "pairs": ("pairs from the rollouts, and a replay of earlier rounds", collect_pairs),
    "reward_model": ("TRL trains the reward model", _train_reward_model),
}


def run_rounds(
    settings: IterateSettings,
    config: DictConfig,
    rule: Rule,
    say: Callable[[Round, str], None],
    parts: Mapping[str, tuple[str, _Part]] = PARTS,
) -> IterateManifest:
    """Run all parts of all rounds that are not done yet, and return the manifest.

    Args:
        say: called before each part.

    Raises:
        IterateError: the folder belongs to other settings, or another process works in it.
    """
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder, IterateError):
        manifest = read_manifest(folder, asdict(settings))
        for number in range(1, settings.rounds + 1):
            this, now = Round(settings, number), (git_revision(), versions())
            this.folder.mkdir(exist_ok=True)
            if len(manifest.rounds) < number:
                manifest.rounds.append(RoundRecord(number, this.seed, this.overrides(), *now))
            record = manifest.rounds[number - 1]
            manifest.write(folder)  # the settings of a round that is killed are known when it is resumed
            for name, (title, part) in parts.items():
                if name not in record.parts:
                    say(this, title)
                    of_others = {
                        key: value
                        for key, value in zip(("git_revision", "versions"), now, strict=True)
                        if value != getattr(record, key)
                    }
                    record.parts[name] = part(this, config, rule) | of_others
                    manifest.write(folder)
    return manifest


def _run_job(module: str, job: dict[str, Any], name: Path, launcher: Sequence[str] | None = None) -> None:
    file = name.with_suffix(".json")
    write_whole(file, json.dumps(job, indent=2) + "\n")
    _run_module(module, [str(file)], name.with_suffix(".log"), launcher)


def _run_module(module: str, words: Sequence[str], log: Path, launcher: Sequence[str] | None = None) -> None:
    run_logged([*(launcher or (sys.executable, "-m")), module, *words], log, environment=os.environ)
