"""Make a prepared folder with data, tokenizer, warm-started model and manifest, complete or not at all."""

import platform
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from omegaconf import DictConfig

import grpo_verl_ext
from grpo_verl_ext.tasks.chain_sum import model as starting_model
from grpo_verl_ext.tasks.chain_sum import prepared, problems
from grpo_verl_ext.tasks.chain_sum.model import accuracy, build_model, build_tokenizer, warm_start
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings
from grpo_verl_ext.tasks.folders import TEST, TRAIN, PreparedOutcome, write_rows
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.files import cache_root

_SAMPLED, _SAMPLED_WITHIN, _GREEDY_AT_LEAST = 0.25, 0.03, 0.95
"""Shares of right answers of a standard start: sampled at temperature 1, ± how much, and greedy at least."""


def prepare_chain_sum(
    seed: int, *, settings: TaskSettings | None = None, root: Path | None = None, force: bool = False
) -> PreparedOutcome:
    """Make ``<root>/<task>/seed-<seed>``, or do nothing if it is there (`PreparedFolder.make`)."""
    of = settings or TaskSettings()
    place = prepared.place((root or cache_root()) / of.name / f"seed-{seed}")

    def fill(folder: Path) -> dict[str, Any]:
        started, lengths = time.perf_counter(), range(of.min_terms, of.max_terms + 1)
        for split, count in (("train", of.train_problems), ("test", of.test_problems)):
            drawn = problems.draw_problems(split, count, lengths=lengths, seed=seed, by_set=of.split_by_set)
            write_rows(folder / f"{split}.parquet", problems.rows(drawn, split, of.name))
        saved, tokenizer = folder / "model", build_tokenizer()
        model = build_model(of, tokenizer, seed=seed)
        warm_start(model, tokenizer, of, seed=seed)
        model.save_pretrained(saved)
        tokenizer.save_pretrained(saved)
        how = {"n": of.test_problems, "max_response_tokens": of.max_response_tokens}
        temperature = 1.0
        if of.standardise:
            temperature = starting_model.standardise(saved, folder / TEST, wanted=_SAMPLED, **how)
        measured = partial(accuracy, saved, folder / TEST, **how)
        versions = {each.__name__: each.__version__ for each in (torch, transformers, grpo_verl_ext)}
        return {
            "seed": seed,
            "versions": {"python": platform.python_version(), **versions},
            "sampled_accuracy": measured(temperature=1.0, samples=4),  # its standard error is 0.01
            "greedy_accuracy": measured(temperature=0.0),
            "measured_prompts": of.test_problems,
            "temperature": temperature,
            "seconds": round(time.perf_counter() - started, 1),
        }

    return place.make(asdict(of), fill, force=force)


def prepare_missing(task: DictConfig | None) -> None:
    """Make the folder that a configuration's ``task`` names, unless it is there or of no embedded task."""
    if task is not None and task.name in prepared.TASKS and not Path(task.folder).exists():
        run_prepare(str(task.name), int(task.seed), force=False)


def run_prepare(task: str, seed: int, *, force: bool) -> None:
    """Make the task of ``seed`` in the user's cache folder, with a progress bar, and print a summary."""
    transformers.utils.logging.disable_progress_bar()
    outcome = prepare_chain_sum(seed, settings=prepared.TASKS[task], force=force)
    found = outcome.manifest
    lines = [
        f"{TRAIN}  {found['settings']['train_problems']} prompts",
        f"{TEST}   {found['settings']['test_problems']} prompts, none of them a training prompt",
        f"model/         sampled accuracy {found['sampled_accuracy']:.3f}, greedy "
        f"{found['greedy_accuracy']:.3f}, on {found['measured_prompts']} test prompts",
    ]
    distance = round(abs(found["sampled_accuracy"] - _SAMPLED), 9)
    if distance > _SAMPLED_WITHIN or found["greedy_accuracy"] < _GREEDY_AT_LEAST:
        lines.append(
            "good for a training; a declared comparison takes models with a greedy "
            f"accuracy of at least {_GREEDY_AT_LEAST} and a sampled one of {_SAMPLED} ± "
            f"{_SAMPLED_WITHIN}. For one, type: --seed <another>"
        )
    make_console().print(outcome.words(*lines))
