"""Make a prepared folder with data, tokenizer, warm-started model and manifest, complete or not at all."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from rich.progress import Progress

import grpo_verl_ext
from grpo_verl_ext.tasks.chain_sum import prepared, problems
from grpo_verl_ext.tasks.chain_sum.accuracy import accuracy
from grpo_verl_ext.tasks.chain_sum.model import build_model, build_tokenizer
from grpo_verl_ext.tasks.chain_sum.prepared import PreparedTaskError, TaskManifest, TaskSettings
from grpo_verl_ext.tasks.chain_sum.problems import Split, draw_problems
from grpo_verl_ext.tasks.chain_sum.standard_start import standardise
from grpo_verl_ext.tasks.chain_sum.warm_start import warm_start
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.files import appearing, locked, move_aside, sha256


@dataclass(frozen=True)
class Prepared:
    """The outcome of `prepare`.

    Attributes:
        made: False if the folder was there already and nothing was done.
        moved_aside: new path of the folder that ``force`` replaced.
    """

    folder: Path
    manifest: TaskManifest
    made: bool
    moved_aside: Path | None


def prepare(
    seed: int,
    *,
    settings: TaskSettings | None = None,
    root: Path | None = None,
    force: bool = False,
    on_step: Callable[[int, int], None] | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Prepared:
    """Make ``<root>/<task>/seed-<seed>``, or do nothing if it is there.

    The folder is built under another name and renamed when it is complete, so a process that is killed leaves
    nothing that is ever used. Of two processes the second waits and then finds the work done.

    Args:
        root: the cache folder; by default ``cache_root()``.
        force: make the folder in any case, and keep the old one under another name.
        on_step: called with the steps done and the steps in all, after each step of the warm start.
        on_wait: called once if another process is making the same folder, before waiting for it.

    Raises:
        PreparedTaskError: the folder is there but corrupt or made with other settings, and ``force`` is off.
    """
    settings = settings or TaskSettings()
    folder = prepared.folder_of(seed, root, settings.name)
    with locked(folder, on_wait=on_wait or _silent):
        if folder.exists() and not force:
            return Prepared(folder, _found(folder, settings), made=False, moved_aside=None)
        aside = move_aside(folder) if folder.exists() else None
        with appearing(folder) as unfinished:
            manifest = _make(unfinished, seed, settings, on_step or _silent)
        return Prepared(folder, manifest, made=True, moved_aside=aside)


def _silent(*_: object) -> None:
    """Do nothing; the default callback."""


def _found(folder: Path, settings: TaskSettings) -> TaskManifest:
    manifest = prepared.read_checked(folder)
    if manifest.settings != asdict(settings):
        raise PreparedTaskError(
            f"{folder} was made with other settings ({manifest.settings}) than this version's "
            f"({asdict(settings)}); to move it aside and make it again, type: "
            f"{prepared.command(folder, force=True)}"
        )
    return manifest


def _make(
    folder: Path, seed: int, settings: TaskSettings, on_step: Callable[[int, int], None]
) -> TaskManifest:
    started = time.perf_counter()
    _write_data(folder, seed, settings)
    _write_model(folder / prepared.MODEL, seed, settings, on_step)
    temperature = 1.0
    if settings.standardise:
        temperature = standardise(
            folder / prepared.MODEL,
            folder / prepared.TEST,
            prompts=settings.test_problems,
            max_response_tokens=settings.max_response_tokens,
        )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = TaskManifest(
        format=prepared.FORMAT,
        seed=seed,
        settings=asdict(settings),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "grpo_verl_ext": grpo_verl_ext.__version__,
        },
        sha256={path.relative_to(folder).as_posix(): sha256(path) for path in files},
        sampled_accuracy=_accuracy(folder, settings, temperature=1.0, samples=prepared.SAMPLES),
        greedy_accuracy=_accuracy(folder, settings, temperature=0.0, samples=1),
        measured_prompts=settings.test_problems,
        temperature=temperature,
        seconds=round(time.perf_counter() - started, 1),
    )
    manifest.write(folder)
    return manifest


def _accuracy(folder: Path, settings: TaskSettings, *, temperature: float, samples: int) -> float:
    return accuracy(
        folder / prepared.MODEL,
        folder / prepared.TEST,
        n=settings.test_problems,
        temperature=temperature,
        max_response_tokens=settings.max_response_tokens,
        samples=samples,
    )


def _write_data(folder: Path, seed: int, settings: TaskSettings) -> None:
    lengths = range(settings.min_terms, settings.max_terms + 1)
    splits: list[tuple[Split, str, int]] = [
        ("train", prepared.TRAIN, settings.train_problems),
        ("test", prepared.TEST, settings.test_problems),
    ]
    for split, name, count in splits:
        drawn = draw_problems(split, count, lengths=lengths, seed=seed, by_set=settings.split_by_set)
        problems.write_rows(folder / name, drawn, split, settings.name)


def _write_model(
    folder: Path, seed: int, settings: TaskSettings, on_step: Callable[[int, int], None]
) -> None:
    tokenizer = build_tokenizer()
    model = build_model(settings, tokenizer, seed=seed)
    warm_start(model, tokenizer, settings, seed=seed, on_step=lambda done: on_step(done, settings.steps))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def run_prepare(task: str, seed: int, *, force: bool) -> None:
    """Make the task of ``seed`` in the user's cache folder, with a progress bar, and print a summary.

    Raises:
        PreparedTaskError: see `prepare`.
    """
    transformers.utils.logging.disable_progress_bar()
    console = make_console()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("warm start", total=None)
        outcome = prepare(
            seed,
            settings=prepared.TASKS[task],
            force=force,
            on_step=lambda done, total: progress.update(bar, completed=done, total=total),
            on_wait=lambda: console.print("waiting: another process is preparing the same folder"),
        )
    console.print(_summary(outcome), markup=False)


def _summary(outcome: Prepared) -> str:
    manifest, folder = outcome.manifest, outcome.folder
    lines = [
        f"made in {manifest.seconds:.0f} s: {folder}"
        if outcome.made
        else f"already there, nothing to do: {folder}",
        f"  {prepared.TRAIN}  {manifest.settings['train_problems']} prompts",
        f"  {prepared.TEST}   {manifest.settings['test_problems']} prompts, none of them a training prompt",
        f"  {prepared.MODEL}/         sampled accuracy {manifest.sampled_accuracy:.3f}, greedy "
        f"{manifest.greedy_accuracy:.3f}, on {manifest.measured_prompts} test prompts",
    ]
    if not manifest.is_standard:
        lines.append(
            f"not a standard start: a comparison takes models with a greedy accuracy of at least "
            f"{prepared.GREEDY_AT_LEAST} and a sampled one of {prepared.SAMPLED} ± {prepared.SAMPLED_WITHIN}"
            f". Type: --seed <another>"
        )
    if outcome.moved_aside:
        lines.append(f"what was there before is kept in {outcome.moved_aside}")
    return "\n".join(lines)
