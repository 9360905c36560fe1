"""Make a prepared folder with data, tokenizer, warm-started model and manifest, complete or not at all."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.progress import Progress

import grpo_verl_ext
from grpo_verl_ext.tasks.chain_sum import prepared, problems
from grpo_verl_ext.tasks.chain_sum.model import (
    accuracy,
    build_model,
    build_tokenizer,
    standardise,
    warm_start,
)
from grpo_verl_ext.tasks.chain_sum.prepared import TaskManifest, TaskSettings
from grpo_verl_ext.tasks.chain_sum.problems import DataSplit, draw_problems
from grpo_verl_ext.tasks.folders import TEST, TRAIN, PreparedOutcome
from grpo_verl_ext.utils.console import make_console


def prepare_chain_sum(
    seed: int,
    *,
    settings: TaskSettings | None = None,
    root: Path | None = None,
    force: bool = False,
    on_step: Callable[[int, int], None] = lambda *_: None,
) -> PreparedOutcome[TaskManifest]:
    """Make ``<root>/<task>/seed-<seed>``, or do nothing if it is there (`PreparedFolder.make`).

    Args:
        root: the cache folder; by default ``cache_root()``.
        on_step: called with the steps done and the steps in all, after each step of the warm start.
    """
    settings = settings or TaskSettings()
    folder = prepared.place(prepared.chain_sum_folder(seed, root, settings.name))
    return folder.make(
        asdict(settings),
        lambda unfinished: _fill(unfinished, seed, settings, on_step),
        force=force,
    )


def _fill(
    folder: Path, seed: int, settings: TaskSettings, on_step: Callable[[int, int], None]
) -> dict[str, Any]:
    started = time.perf_counter()
    lengths = range(settings.min_terms, settings.max_terms + 1)
    splits: list[tuple[DataSplit, str, int]] = [
        ("train", TRAIN, settings.train_problems),
        ("test", TEST, settings.test_problems),
    ]
    for split, name, count in splits:
        drawn = draw_problems(split, count, lengths=lengths, seed=seed, by_set=settings.split_by_set)
        problems.write_problems(folder / name, drawn, split, settings.name)
    place, tokenizer = folder / prepared.MODEL_FOLDER, build_tokenizer()
    model = build_model(settings, tokenizer, seed=seed)
    warm_start(model, tokenizer, settings, seed=seed, on_step=lambda done: on_step(done, settings.steps))
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    budget = settings.max_response_tokens
    temperature = 1.0
    if settings.standardise:
        of = {"prompts": settings.test_problems, "max_response_tokens": budget}
        temperature = standardise(place, folder / TEST, **of)
    measured = partial(accuracy, place, folder / TEST, n=settings.test_problems, max_response_tokens=budget)
    return {
        "format": prepared.FORMAT,
        "seed": seed,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "grpo_verl_ext": grpo_verl_ext.__version__,
        },
        "sampled_accuracy": measured(temperature=1.0, samples=prepared.SAMPLES_PER_PROMPT),
        "greedy_accuracy": measured(temperature=0.0),
        "measured_prompts": settings.test_problems,
        "temperature": temperature,
        "seconds": round(time.perf_counter() - started, 1),
    }


def run_prepare(task: str, seed: int, *, force: bool) -> None:
    """Make the task of ``seed`` in the user's cache folder, with a progress bar, and print a summary.

    Raises:
        PreparedFolderError: see `PreparedFolder.make`.
    """
    transformers.utils.logging.disable_progress_bar()
    console = make_console()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("warm start", total=None)
        outcome = prepare_chain_sum(
            seed,
            settings=prepared.TASKS[task],
            force=force,
            on_step=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    manifest = outcome.manifest
    lines = [
        f"{TRAIN}  {manifest.settings['train_problems']} prompts",
        f"{TEST}   {manifest.settings['test_problems']} prompts, none of them a training prompt",
        f"{prepared.MODEL_FOLDER}/         sampled accuracy {manifest.sampled_accuracy:.3f}, greedy "
        f"{manifest.greedy_accuracy:.3f}, on {manifest.measured_prompts} test prompts",
    ]
    if not manifest.is_standard:
        lines.append(
            "good for a training, but not a standard start: a declared comparison takes models with a greedy "
            f"accuracy of at least {prepared.GREEDY_AT_LEAST} and a sampled one of {prepared.SAMPLED} ± "
            f"{prepared.SAMPLED_WITHIN}. For one, type: --seed <another>"
        )
    console.print(outcome.words(*lines))
