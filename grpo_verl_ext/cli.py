"""``grpo-verl-ext``: reads the command line and calls; what a command does lives in its own module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="GRPO, DAPO, Dr. GRPO and GVPO for verl.", no_args_is_help=True, pretty_exceptions_enable=False
)


@contextmanager
def _one_message(who: str, *errors: type[Exception], extra: str | None = None) -> Iterator[None]:
    """These errors, which are the user's to mend, end the command with their message and exit status 1.

    Args:
        who: what the message begins with.
        extra: of the package; what is imported in the block may be installed with it alone.
    """
    try:
        yield
    except errors as error:
        typer.echo(f"{who}: {error}", err=True)
        raise typer.Exit(1) from error
    except ModuleNotFoundError as error:
        if extra is None:
            raise
        typer.echo(f"{who}: {error}. Type: pip install 'grpo-verl-ext[{extra}]'", err=True)
        raise typer.Exit(1) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("grpo-verl-ext"))
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[  # noqa: ARG001  # acts when it is read
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """GRPO, DAPO, Dr. GRPO and GVPO for verl."""
    # As `python3 -m verl…` does: VERL_USE_EXTERNAL_MODULES may name a module of this folder.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


class Task(str, Enum):
    """The embedded tasks."""

    CHAIN_SUM = "chain_sum"


@app.command()
def prepare(
    task: Annotated[Task, typer.Argument(help="The embedded task to make.")],
    seed: Annotated[int, typer.Option(min=0, help="Decides data, weights and warm start.")] = 1,
    force: Annotated[
        bool, typer.Option("--force", help="Make it again; what is there is kept, moved aside.")
    ] = False,
) -> None:
    """Make an embedded task's data, tokenizer and warm-started model in the cache folder, once."""
    # torch takes seconds to import; `--help` should not.
    from grpo_verl_ext.tasks.chain_sum.prepare import run_prepare
    from grpo_verl_ext.tasks.chain_sum.prepared import PreparedTaskError

    with _one_message(task.value, PreparedTaskError):
        run_prepare(seed, force=force)


@app.command()
def invariance(
    as_json: Annotated[bool, typer.Option("--json", help="Print every measurement as JSON.")] = False,
    include_verl: Annotated[bool, typer.Option("--verl", help="Measure verl's own settings too.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random mini-batch.")] = 0,
    loss: Annotated[str | None, typer.Option(help="Measure this loss, policy_loss.loss_mode.")] = None,
    loss_agg_mode: Annotated[str, typer.Option(help="With --loss: actor.loss_agg_mode.")] = "token-mean",
) -> None:
    """Does a loss change with micro-batches, ranks or dynamic batching? Exit 1 if ours, or --loss, does."""
    # verl takes seconds to import, too.
    from grpo_verl_ext.verl_plugin.invariance import own_case, report

    with _one_message("invariance", ValueError):
        own = None if loss is None else own_case(loss, loss_agg_mode)
    if not report(as_json=as_json, include_verl=include_verl, seed=seed, own=own):
        raise typer.Exit(1)


@app.command()
def doctor(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="A training's command line, as verl's main_ppo takes it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    *,
    config_path: Annotated[
        str | None,
        typer.Option(
            "--config-path",
            "-cp",
            help="As main_ppo takes it: a folder, absolute or seen from main_ppo's own, or pkg://MODULE.",
        ),
    ] = None,
    config_name: Annotated[
        str | None,
        typer.Option(
            "--config-name", "-cn", help="As main_ppo takes it: a file there; ppo_megatron_trainer."
        ),
    ] = None,
    module: Annotated[str | None, typer.Option("-m", hidden=True)] = None,
) -> None:
    """Is the plugin there, here and in a Ray worker? With a command line: is the training what it is called?

    The line may be pasted whole: python3 -m verl.trainer.main_ppo --config-name=… key=value …

    Exit status 0: nothing found, 1: warnings, 2: errors.
    """
    from grpo_verl_ext.doctor.report import examine_configuration, examine_environment

    words = _without_program(overrides or [], module)
    options = {
        name: value
        for name, value in (("config_path", config_path), ("config_name", config_name))
        if value is not None
    }
    asked = words or options or module
    status = (
        examine_configuration(words, as_json=as_json, **options) if asked else examine_environment(as_json)
    )
    raise typer.Exit(status)


def _without_program(words: list[str], module: str | None) -> list[str]:
    """The words of a training's command line that follow ``python3 -m verl.trainer.main_ppo``."""
    from grpo_verl_ext.runs.verl_run import TRAINER

    trainer = TRAINER[1]
    if module not in (None, trainer):
        raise typer.BadParameter(f"-m is {module}; valid is {trainer}. Type: -m {trainer}")
    return words[1:] if module and words and Path(words[0]).name.startswith("python") else words


@app.command()
def iterate(
    config: Annotated[Path, typer.Argument(help="A YAML file such as examples/iterate_chain_sum.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, wins over the file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, do nothing.")] = False,
) -> None:
    """Rounds of iterative GRPO: verl trains the policy, TRL its reward model.

    Killed, the same command goes on where it was.
    """
    from grpo_verl_ext.iterate.settings import IterateError, read_settings
    from grpo_verl_ext.iterate.terminal import print_plan, run_iterate
    from grpo_verl_ext.runs.process import ProcessFailedError

    with _one_message("iterate", IterateError, ProcessFailedError):
        settings = read_settings(config, overrides or [])
        (print_plan if dry_run else run_iterate)(settings)


@app.command()
def ablate(
    grid: Annotated[Path, typer.Argument(help="A YAML file such as those in examples/ablations.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, wins over the file.")] = None,
    run: Annotated[bool, typer.Option("--run", help="Start the runs; without it they are listed.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed runs again.")] = False,
    *,
    ray_address: Annotated[
        str | None, typer.Option(help="Submit the runs as jobs to this Ray cluster: http://HOST:8265.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="With --ray-address: so many runs at once.")] = 1,
) -> None:
    """Trainings that differ in what is to be compared, each with every seed.

    Killed, the same command goes on where it was.
    """
    from grpo_verl_ext.ablation.grid import AblationError, read_grid
    from grpo_verl_ext.ablation.terminal import plan_and_report, run_and_report

    with _one_message("ablate", AblationError):
        settings = read_grid(grid, overrides or [])
        if run and not run_and_report(
            settings, retry_failed=retry_failed, ray_address=ray_address, jobs=jobs
        ):
            raise typer.Exit(1)
        if not run:
            plan_and_report(settings, retry_failed=retry_failed)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a grid that `ablate --run` has begun.")],
    threshold: Annotated[
        float | None, typer.Option(help="When did each run's first metric reach this value?")
    ] = None,
) -> None:
    """What the finished runs of a grid say: means, paired differences, intervals."""
    from grpo_verl_ext.ablation.grid import AblationError

    with _one_message("report", AblationError, extra="ablation"):
        from grpo_verl_ext.ablation.report import report as print_report

        print_report(folder, threshold=threshold)


@app.command()
def anatomy(
    dump: Annotated[Path, typer.Argument(help="verl's trainer.rollout_data_dir, or one file of it.")],
    *,
    tokenizer: Annotated[Path, typer.Option(help="Folder of the policy's tokenizer.")],
    right_above: Annotated[float, typer.Option(help="A response with a higher score is right.")] = 0.0,
    max_response_length: Annotated[
        int | None, typer.Option(min=1, help="The budget in tokens, data.max_response_length.")
    ] = None,
    micro_batch_size: Annotated[
        int, typer.Option(min=1, help="Responses in a local batch; only bnpo depends on it.")
    ] = 8,
    policy: Annotated[
        Path | None, typer.Option(help="Model folder, for the bias of the KL estimators …")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="… against this one.")] = None,
    kl_responses: Annotated[int, typer.Option(min=1, help="Responses that both models read.")] = 64,
    out: Annotated[Path, typer.Option(help="Folder for anatomy.json and the figures.")] = Path(
        "outputs/anatomy"
    ),
) -> None:
    """The weight that each variant gives the tokens of your own rollouts, by length, right and wrong."""
    from grpo_verl_ext.anatomy.dump import AnatomyError

    with _one_message("anatomy", AnatomyError, extra="ablation"):
        from grpo_verl_ext.anatomy.measure import Settings
        from grpo_verl_ext.anatomy.report import run_anatomy

        run_anatomy(
            Settings(
                dump=dump,
                tokenizer=tokenizer,
                out=out,
                right_above=right_above,
                max_response_length=max_response_length,
                micro_batch_size=micro_batch_size,
                policy=policy,
                reference=reference,
                kl_responses=kl_responses,
            )
        )
