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
from grpo_verl_ext.tasks.chain_sum.prepared import TaskSettings
from grpo_verl_ext.tasks.chain_sum.problems import DataSplit
from grpo_verl_ext.tasks.folders import TEST, TRAIN, PreparedOutcome
from grpo_verl_ext.utils.console import make_console


def prepare_chain_sum(
    seed: int,
    *,
    settings: TaskSettings | None = None,
    root: Path | None = None,
    force: bool = False,
    on_step: Callable[[int, int], None] = lambda *_: None,
) -> PreparedOutcome:
    """Make ``<root>/<task>/seed-<seed>``, or do nothing if it is there (`PreparedFolder.make`).

    ``on_step`` is called with the steps done and the steps in all, after each step of the warm start.
    """
    of = settings or TaskSettings()
    folder = prepared.place(prepared.chain_sum_folder(seed, root, of.name))
    return folder.make(asdict(of), lambda unfinished: _fill(unfinished, seed, of, on_step), force=force)


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
        drawn = problems.draw_problems(split, count, lengths=lengths, seed=seed, by_set=settings.split_by_set)
        problems.write_problems(folder / name, drawn, split, settings.name)
    place, tokenizer = folder / prepared.MODEL_FOLDER, build_tokenizer()
    model = build_model(settings, tokenizer, seed=seed)
    warm_start(model, tokenizer, settings, seed=seed, on_step=lambda done: on_step(done, settings.steps))
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    how = {"n": settings.test_problems, "max_response_tokens": settings.max_response_tokens}
    temperature = standardise(place, folder / TEST, **how) if settings.standardise else 1.0
    measured = partial(accuracy, place, folder / TEST, **how)
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
    """Make the task of ``seed`` in the user's cache folder, with a progress bar, and print a summary."""
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
    found = outcome.manifest
    lines = [
        f"{TRAIN}  {found['settings']['train_problems']} prompts",
        f"{TEST}   {found['settings']['test_problems']} prompts, none of them a training prompt",
        f"{prepared.MODEL_FOLDER}/         sampled accuracy {found['sampled_accuracy']:.3f}, greedy "
        f"{found['greedy_accuracy']:.3f}, on {found['measured_prompts']} test prompts",
    ]
    if not prepared.is_standard(found):
        lines.append(
            "good for a training, but not a standard start: a declared comparison takes models with a greedy "
            f"accuracy of at least {prepared.GREEDY_AT_LEAST} and a sampled one of {prepared.SAMPLED} ± "
            f"{prepared.SAMPLED_WITHIN}. For one, type: --seed <another>"
        )
    console.print(outcome.words(*lines))
