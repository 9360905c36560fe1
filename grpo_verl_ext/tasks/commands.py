"""The commands ``grpo-verl-ext prepare …``: each makes data or a model in the cache folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.utils.console import make_console, one_message

prepare = typer.Typer(help="Make a task's data, or a model, in the cache folder.", no_args_is_help=True)

_Force = Annotated[bool, typer.Option("--force", help="Make it again, and move the old folder aside.")]


def _embedded(
    context: typer.Context,
    seed: Annotated[int, typer.Option(min=0, help="Make data, weights and warm start with this seed.")] = 1,
    force: _Force = False,
) -> None:
    # torch takes seconds to import, and `--help` must not
    from grpo_verl_ext.tasks.chain_sum.prepare import run_prepare

    with one_message(task := str(context.info_name)):
        run_prepare(task, seed, force=force)


for _task in TASKS:
    prepare.command(_task, help="Make this embedded task's data, tokenizer and warm-started model.")(
        _embedded
    )


@prepare.command("gsm8k_tags")
def _gsm8k_tags(
    source: Annotated[
        Path,
        typer.Option(help="Read train and test from this folder, .jsonl or .parquet; nothing is fetched."),
    ],
    *,
    folder: Annotated[
        Path | None, typer.Option(help="Write into this folder instead of the cache folder.")
    ] = None,
    force: _Force = False,
) -> None:
    """Write GSM8K's problems with a system prompt that asks for the tags."""
    from grpo_verl_ext.tasks.gsm8k_tags import prepare_gsm8k_tags

    console = make_console()
    with one_message("gsm8k_tags"):
        outcome = prepare_gsm8k_tags(source, folder, force=force)
    found = outcome.manifest["found"]
    console.print(outcome.words("{train} training and {test} test prompts".format(**found)))
