"""Run the rounds: train the policy, merge it, measure it, collect pairs, train the reward model.

Each part writes files that appear complete or not at all, and returns results for ``manifest.json``, which is
rewritten atomically after each of them. A part that the manifest has is not run again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext.iterate import kl_to_initial, reward_training
from grpo_verl_ext.iterate.examples import (
    Example,
    Steps,
    example_kind,
    examples_of,
    read_examples,
    replayed,
    split_by_prompt,
    write_pairs,
)
from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, Round
from grpo_verl_ext.runs.child_process import run_logged
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.provenance import git_revision, versions
from grpo_verl_ext.utils.documents import Document, DocumentError, leaves, read_json
from grpo_verl_ext.utils.files import alone_in, appearing, write_whole

_FORMAT = 1
MANIFEST = "manifest.json"

PartResults = dict[str, Any]
"""Results of a finished part, as plain JSON."""


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
    parts: dict[str, PartResults] = field(default_factory=dict)


@dataclass
class IterateManifest(Document):
    """Settings and rounds; without times, so that a run that was killed and resumed has the same manifest."""

    settings: dict[str, Any]
    rounds: list[RoundRecord] = field(default_factory=list)
    format: int = _FORMAT

    def write(self, folder: Path) -> None:
        """Replace the file."""
        write_whole(folder / MANIFEST, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    def record(self, number: int, new: Callable[[], RoundRecord]) -> RoundRecord:
        """Return the record of a round; ``new`` makes it when the round begins."""
        if len(self.rounds) < number:
            self.rounds.append(new())
        return self.rounds[number - 1]

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
    file = folder / MANIFEST
    if not file.exists():
        return IterateManifest(settings)
    try:
        manifest = read_json(file, IterateManifest)
    except DocumentError as error:
        raise IterateError(
            f"{file} is not a manifest ({error}). It was left in place; type folder=<a new folder>"
        ) from error
    if manifest.format != _FORMAT:
        raise IterateError(
            f"{file} has format {manifest.format}, this version reads {_FORMAT}; type folder=<a new folder>"
        )
    before, now = (
        {key: value for key, value in leaves(each) if value != {}} for each in (manifest.settings, settings)
    )
    for key in {**before, **now}:
        if before.get(key) != now.get(key) and not _may_differ(key, manifest):
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


def _may_differ(key: str, manifest: IterateManifest) -> bool:
    parts = (part for begin, part in _OF_PARTS.items() if key.startswith(begin))
    unread = (all(part not in each.parts for each in manifest.rounds) for part in parts)
    return key == "rounds" or any(unread)


@dataclass(frozen=True)
class RoundContext:
    """Arguments of a part beside its round.

    Attributes:
        config: verl's configuration of round 1, composed.
        rule: the function that ``reward_model.label`` or ``.step_label`` names.
        on_step: called with the number of the last finished training step.
    """

    config: DictConfig
    rule: Callable[..., object]
    on_step: Callable[[int], None]

    @property
    def first_policy(self) -> str:
        """Folder or hub name of the policy before round 1."""
        return str(self.config.actor_rollout_ref.model.path)


_Part = Callable[[Round, RoundContext], PartResults]


def train_policy(this: Round, context: RoundContext) -> PartResults:
    """Run verl's trainer for M steps from the policy of the round before, which is also the reference."""
    run = this.run()
    if not run.is_finished():
        run.go(lambda metrics: context.on_step(max(metrics, default=0)))
    metrics = run.metrics()
    return {
        "steps": run.steps,
        "validation_before": _validation(metrics, 0),
        "validation_after": _validation(metrics, run.steps),
        "score_first_step": metrics.get(1, {}).get("critic/score/mean"),
        "score_last_step": metrics.get(run.steps, {}).get("critic/score/mean"),
    }


def merge_policy(this: Round, _context: RoundContext) -> PartResults:
    """Convert the last checkpoint to a Hugging Face folder with verl's merger."""
    _appear(
        this.model,
        lambda target: _run_module(
            "verl.model_merger",
            [
                *("merge", "--backend", "fsdp"),
                *("--local_dir", str(this.run().last_checkpoint / "actor"), "--target_dir", str(target)),
            ],
            this.folder / "merge.log",
        ),
    )
    return {}


def _measure_policy(this: Round, context: RoundContext) -> PartResults:
    """Measure the KL to the first policy, in nats per response."""
    settings = this.settings.measure
    if settings.prompts == 0:
        return {"kl_to_first": None}
    result = this.folder / "divergence.json"
    job = kl_to_initial.DivergenceJob(
        policy=str(this.model),
        first=context.first_policy,
        chats=_chats(context.config, settings.prompts),
        batch_size=settings.batch_size,
        temperature=1.0,
        max_response_tokens=int(context.config.data.max_response_length),
        template=dict(context.config.data.get("apply_chat_template_kwargs") or {}),
        seed=this.seed,
        result=str(result),
    )
    _run_job(kl_to_initial.__name__, job, this.folder / "divergence_job")
    measured: PartResults = json.loads(result.read_text())
    return measured


def collect_pairs(this: Round, context: RoundContext) -> PartResults:
    """Make pairs from this round's rollouts, labelled by the rule, and replay pairs of all earlier rounds.

    ``replay_from`` counts as an earlier round. With ``step_label`` a "pair" is the labelled steps of one
    response.
    """
    pairs, responses, missing = examples_of(this, context.rule)
    train, held_out = _split(this, pairs)
    kind = example_kind(this.settings.reward_model)
    earlier = [pair for file in this.replayable for pair in read_examples(file, kind)]
    # Another run has held out other prompts.
    history, _ = _split(this, earlier)
    replay = replayed(len(train), history, share=this.settings.reward_model.replay, seed=this.seed)
    write_pairs(this.training_pairs, train)
    write_pairs(this.held_out_pairs, held_out)
    write_pairs(this.mixture, [*train, *replay])
    return {
        "responses": responses,
        "steps_without_rollouts": missing,
        "pairs": len(train),
        "replayed": len(replay),
        "held_out": len(held_out),
    }


def _split(this: Round, pairs: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    # The run's seed, not the round's: a held-out prompt is held out in every round.
    return split_by_prompt(pairs, held_out=this.settings.reward_model.held_out, seed=this.settings.seed)


def _train_reward_model(this: Round, context: RoundContext) -> PartResults:
    """Train the reward model of the round before with TRL's RewardTrainer, or PRMTrainer for steps."""
    kind = example_kind(this.settings.reward_model)
    if not read_examples(this.mixture, kind):
        return {"held_out_accuracy_before": None, "held_out_accuracy_after": None}

    def train(target: Path) -> None:
        job = reward_training.RewardJob(
            start=this.before.reward_model or context.first_policy,
            train=str(this.mixture),
            held_out=str(this.held_out_pairs),
            target=str(target),
            seed=this.seed,
            trainer=dict(this.settings.reward_model.trainer),
            steps=kind is Steps,
        )
        launcher = this.settings.reward_model.launcher
        _run_job(reward_training.__name__, job, this.folder / "reward_training", launcher=launcher)

    _appear(this.own_reward_model, train)
    results: PartResults = json.loads((this.own_reward_model / reward_training.RESULTS).read_text())
    return results


ROUND_PARTS: dict[str, _Part] = {
    "policy": train_policy,
    "model": merge_policy,
    "measure": _measure_policy,
    "pairs": collect_pairs,
    "reward_model": _train_reward_model,
}


_Show = Callable[[Round, str], AbstractContextManager[None]]
"""Shows that a part runs, until it is finished and in the manifest."""


def run_rounds(
    settings: IterateSettings,
    context: RoundContext,
    show: _Show,
    parts: Mapping[str, _Part] = ROUND_PARTS,
) -> IterateManifest:
    """Run all parts of all rounds that are not done yet, and return the manifest.

    Raises:
        IterateError: the folder belongs to other settings, or another process works in it.
    """
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder, IterateError):
        manifest = read_manifest(folder, settings.as_dict())
        for number in range(1, settings.rounds + 1):
            this = Round(settings, number)
            this.folder.mkdir(exist_ok=True)
            record = manifest.record(number, partial(_new_record, this))
            manifest.write(folder)  # the settings of a round that is killed are known when it is resumed
            for name, part in parts.items():
                if name not in record.parts:
                    with show(this, name):
                        record.parts[name] = part(this, context) | _made_with_other_code(record)
                        manifest.write(folder)
    return manifest


def _made_with_other_code(record: RoundRecord) -> PartResults:
    """Return commit and versions of a part that was made after an update, where they are not the round's."""
    now = {"git_revision": git_revision(), "versions": versions()}
    return {name: value for name, value in now.items() if value != getattr(record, name)}


def _new_record(this: Round) -> RoundRecord:
    return RoundRecord(
        round=this.number,
        seed=this.seed,
        overrides=this.overrides(),
        git_revision=git_revision(),
        versions=versions(),
    )


def _validation(metrics: Metrics, step: int) -> dict[str, float]:
    return {
        name: value for name, value in sorted(metrics.get(step, {}).items()) if name.startswith("val-core/")
    }


def _chats(config: DictConfig, count: int) -> list[list[dict[str, str]]]:
    from verl.utils.config import omega_conf_to_dataclass

    from grpo_verl_ext.verl_plugin.measure.data import first_rows

    model, files = omega_conf_to_dataclass(config.actor_rollout_ref.model), config.data.val_files
    chats = [list(map(dict, row["raw_prompt"])) for row in first_rows(files, count, model.tokenizer, config)]
    if not chats:
        raise IterateError(f"data.val_files={files} has no row to measure the policy on")
    return chats


def _appear(target: Path, make: Callable[[Path], None]) -> None:
    """Make a folder that appears complete or not at all; an existing one was finished before a kill."""
    if not target.exists():
        with appearing(target) as unfinished:
            make(unfinished)


def _run_job(module: str, job: Any, name: Path, *, launcher: Sequence[str] | None = None) -> None:
    file = name.with_suffix(".json")
    write_whole(file, json.dumps(asdict(job), indent=2) + "\n")
    _run_module(module, [str(file)], name.with_suffix(".log"), launcher=launcher)


def _run_module(
    module: str, arguments: Sequence[str], log: Path, *, launcher: Sequence[str] | None = None
) -> None:
    run_logged([*(launcher or (sys.executable, "-m")), module, *arguments], log, environment=os.environ)
