"""The command line ``grpo-verl-ext``; each command calls a function of the module that does the work."""

import json
import shlex
import sys
import traceback
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.utils.console import interruptible, one_message


class _Commands(TyperGroup):
    """Prints an error as one message."""

    def invoke(self, ctx: Any) -> Any:
        if ctx.parent is None:
            with interruptible():
                return super().invoke(ctx)
        extra = "ablation" if ctx.info_name == "ablate" else ctx.info_name
        with one_message(ctx.info_name, extra=extra, elsewhere="folder=<another>"):
            return super().invoke(ctx)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
_ablate = typer.Typer(help="Compare variants: train each with every seed, and report the differences.")
_iterate = typer.Typer(help="Run iterative GRPO in rounds: verl trains the policy, TRL its reward model.")
_prepare = typer.Typer(help="Make a task's data, or a model, in the cache folder.", no_args_is_help=True)
app.add_typer(_ablate, name="ablate", cls=_Commands, no_args_is_help=True)
app.add_typer(_iterate, name="iterate", cls=_Commands, no_args_is_help=True)
app.add_typer(_prepare, name="prepare", cls=_Commands)

_Preset = Annotated[str, typer.Argument(metavar="ALGO", help="Use this preset, such as gvpo.")]
_Words = Annotated[list[str] | None, typer.Argument(metavar="[OVERRIDES]", help="Set verl's key=value.")]
_Path = Annotated[str, typer.Option("--config-path", "-cp", help="Use this folder or pkg://MODULE.")]
_Name = Annotated[str, typer.Option("--config-name", "-cn", help="Use this configuration of it.")]
_PATH, _NAME = "config", "ppo_trainer"
_MODULE, _FILE = "verl.trainer.main_ppo", "verl/trainer/main_ppo.py"
_AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
_ConfigFile = Annotated[Path, typer.Argument(help="Read this file: examples/iterate_chain_sum.yaml.")]
_GridFile = Annotated[Path, typer.Argument(help="Read this YAML file, such as those in examples/ablations.")]
_Overrides = Annotated[list[str] | None, typer.Argument(help="Replace values of the file: key=value.")]
_UntilDecided = Annotated[bool, typer.Option("--until-decided", help="Train what its rule asks for.")]


@app.callback(invoke_without_command=True)
def _prepare_process(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """GRPO, DAPO, Dr. GRPO and GVPO for verl."""
    if show_version:
        from grpo_verl_ext.runs.provenance import git_revision

        commit, plus, changes = (git_revision() or "").partition("+")
        of_checkout = f".dev0+{commit[:12]}{'.' * len(plus)}{changes}" * bool(commit)
        typer.echo(version("grpo-verl-ext") + of_checkout)
        raise typer.Exit
    # As `python3 -m verl…` does: VERL_USE_EXTERNAL_MODULES may name a module of this folder.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


@app.command("train", context_settings={"ignore_unknown_options": True})
def _train(algo: _Preset, words: _Words = None, path: _Path = _PATH, name: _Name = _NAME) -> None:
    """Run verl's main_ppo with a preset; stops if any node lacks the plugin.

    All other options are Hydra's.
    """
    training = (algo, words or [], path, name)
    with one_message("train"), redirect_stdout(sys.stderr):  # verl prints where it is imported
        from grpo_verl_ext.launch.train import checked_training, run_training

        config = checked_training(*training)
    run_training(*training, config)


@app.command("show")
def _show(
    algo: _Preset, words: _Words = None, path: _Path = _PATH, name: _Name = _NAME, as_json: _AsJson = False
) -> None:
    """Print the values of a training, where each comes from, and what differs from the paper."""
    with one_message("show"), redirect_stdout(sys.stderr):
        from grpo_verl_ext.launch.values import configured, print_values, shown

        config = configured(algo, words or [], path, name)
    print_values(shown(algo, config, words or [], name), as_json=as_json)


@app.command("invariance")
def _invariance(
    *,
    as_json: _AsJson = False,
    verl: Annotated[bool, typer.Option("--verl", help="Also measure verl's own losses.")] = False,
    seed: Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="Draw with this seed.")] = 0,
    loss: Annotated[str | None, typer.Option(help="Measure this policy_loss.loss_mode.")] = None,
    loss_agg_mode: Annotated[str | None, typer.Option(help="Average it by this loss_agg_mode.")] = None,
    loss_scale_factor: Annotated[int | None, typer.Option(min=1, help="Divide by this, not null.")] = None,
) -> None:
    """Measure whether micro-batches, ranks or dynamic batching change a loss or its gradient.

    Exit status 1: they change a loss of this package, or the one given by --loss; or it is constant, or NaN.
    """
    with one_message("invariance", ValueError):
        from grpo_verl_ext.proof.invariance import own_case, report_invariance

        own = own_case(loss, loss_agg_mode, loss_scale_factor)
        passed = report_invariance(as_json=as_json, include_verl=verl, seed=seed, own=own)
    if not passed:
        raise typer.Exit(1)


class _Line(TyperCommand):
    """Takes a training's line whole: what precedes verl's module is left out, except the doctor's options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        module = next((word for word in args if word == _MODULE or word.endswith(_FILE)), None)
        if module is not None:
            at = args.index(module)
            own = [word for word in args[:at] if word in ("--json", "--fix") or word.startswith("--config-")]
            args = [*own, "-m", _MODULE, *args[at + 1 :]]
        return super().parse_args(ctx, args)


@app.command("doctor", cls=_Line)
def _doctor(
    overrides: Annotated[list[str] | None, typer.Argument(help="Check this line of main_ppo's.")] = None,
    as_json: _AsJson = False,
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Print the corrected command.")] = False,
    path: _Path = _PATH,
    name: _Name = _NAME,
    module: Annotated[str | None, typer.Option("-m", hidden=True)] = None,
) -> None:
    """Check that the plugin is loaded, here and in a Ray worker; with a command line, check that training.

    The command line may be pasted whole: uv run python3 -m verl.trainer.main_ppo --config-name=… key=value …

    Exit status 0: nothing found, 1: warnings, 2: errors; with --fix, in the corrected command.
    """
    if module not in (None, _MODULE):
        raise typer.BadParameter(f"-m is {module}; valid is {_MODULE}. Type: -m {_MODULE}")
    has_training = bool(overrides or module or (path, name) != (_PATH, _NAME))
    if fix and not has_training:
        raise typer.BadParameter("--fix corrects a command line. Type: doctor --fix +algo@_global_=…")
    from grpo_verl_ext.utils.which_verl import UnsupportedVerlError, which_verl

    where, status = "" if has_training else ", here and in a Ray worker", 2
    try:
        which_verl()
        typer.echo(f"doctor: importing verl{where}: seconds, or minutes the first time", err=True)
        if has_training:
            with redirect_stdout(sys.stderr):
                from grpo_verl_ext.doctor.configuration import examine_configuration
            options: Any = {"config_path": path, "config_name": name, "as_json": as_json, "fix": fix}
            status = examine_configuration(overrides or [], **options)
        else:  # nothing else may load the plugin's functions before it looks for them
            from grpo_verl_ext.doctor.environment import examine_environment

            status = examine_environment(as_json)
    except UnsupportedVerlError as error:
        print(json.dumps({"complaints": [str(error)]}, indent=2) if as_json else error)
    except Exception:  # noqa: BLE001  # Python's own status is 1, which means warnings here
        traceback.print_exc()
    raise typer.Exit(status)


def _iterate_rounds(context: typer.Context, config: _ConfigFile, overrides: _Overrides = None) -> None:
    from grpo_verl_ext.iterate.settings import read_settings

    settings = read_settings(config, overrides or [])  # before verl is imported
    from grpo_verl_ext.iterate import rounds

    (rounds.print_rounds if context.info_name == "plan" else rounds.run_iterate)(settings)


_iterate.command("plan", help="List the rounds and what is done already; start nothing.")(_iterate_rounds)
_iterate.command("run", help="Train all rounds; after a kill the same command resumes.")(_iterate_rounds)


@_ablate.command("plan")
def _ablate_plan(
    grid: _GridFile,
    overrides: _Overrides = None,
    pilot: Annotated[Path | None, typer.Option(help="Estimate the power from this folder or table.")] = None,
) -> None:
    """List the runs and what is finished, and the power of a declared comparison; start nothing."""
    from grpo_verl_ext.ablation.grid import read_grid

    settings = read_grid(grid, overrides or [])  # before verl is imported
    from grpo_verl_ext.ablation.terminal import print_plan

    options = ["--until-decided"] * (settings.starts is not None)
    run = shlex.join(["grpo-verl-ext", "ablate", "run", str(grid), *(overrides or []), *options])
    print_plan(settings, command=run, pilot=pilot)


@_ablate.command("run")
def _ablate_run(
    grid: _GridFile,
    overrides: _Overrides = None,
    *,
    until_decided: _UntilDecided = False,
    ray_address: Annotated[str | None, typer.Option(help="Run on this cluster: http://HOST:8265.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Run at most this many at once, on a Ray cluster.")] = 1,
) -> None:
    """Train every run that is not finished.

    To resume after a kill or a failure, run the same command again. Exit status 1: not all runs are finished.
    """
    from grpo_verl_ext.ablation.grid import read_grid

    settings = read_grid(grid, overrides or [])
    from grpo_verl_ext.ablation.terminal import run_grid

    if not run_grid(settings, ray_address=ray_address, until_decided=until_decided, jobs=jobs):
        raise typer.Exit(1)


@_ablate.command("report")
def _ablate_report(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="Read this folder or metrics.parquet.")],
    output: Annotated[Path | None, typer.Option(help="Write the report into this folder instead.")] = None,
) -> None:
    """Compare the finished runs: verdicts, differences paired by seed, intervals, figures."""
    with one_message("ablate", extra="ablation", elsewhere="--output <another folder>"):
        from grpo_verl_ext.ablation.terminal import print_report

        print_report(source, output=output)


def _prepare_task(
    context: typer.Context,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Make data, weights and warm start with this seed.")
    ] = 1,
    force: Annotated[bool, typer.Option("--force", help="Make it again; the old one is kept.")] = False,
) -> None:
    # torch takes seconds to import, and `--help` must not
    from grpo_verl_ext.tasks.chain_sum.prepare import run_prepare

    with one_message(task := str(context.info_name)):
        run_prepare(task, seed, force=force)


for _name in TASKS:
    _prepare.command(_name, help="Make this task's data, tokenizer and warm-started model.")(_prepare_task)
