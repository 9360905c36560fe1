"""Compose, check and train the runs of a grid: one after the other here, or as jobs of a Ray cluster."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.live import Live
from rich.text import Text

from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.ablation.grid import FAILURE, NOTE, RUN_RECORD, STARTS, AblationError, GridRun, keep_grid
from grpo_verl_ext.rewards.functions import file_of, is_function
from grpo_verl_ext.runs.child_process import ProcessFailedError
from grpo_verl_ext.runs.provenance import CHANGED, git_revision, machine, utc_now, versions
from grpo_verl_ext.runs.verl_run import CorruptFileError, Metrics
from grpo_verl_ext.tasks.chain_sum.prepared import TASKS
from grpo_verl_ext.utils.documents import leaves, parse_json
from grpo_verl_ext.utils.errors import as_typed
from grpo_verl_ext.utils.files import alone_in, in_one_sentence, module_file, sha256_here, write_whole
from grpo_verl_ext.utils.keys import RUNTIME_ENVIRONMENT, SECTION, key_of, setting

if TYPE_CHECKING:
    from grpo_verl_ext.ablation.ray_jobs import RayCluster

_POLL_SECONDS = 1.0


def compose_runs(runs: Sequence[GridRun]) -> dict[str, DictConfig]:
    """Name of each run → verl's configuration of it."""
    from grpo_verl_ext.verl_plugin.compose import composed  # a report needs no verl
    from grpo_verl_ext.verl_plugin.usage import own_task

    configs = {}
    for run in runs:
        try:
            configs[run.name] = composed(run.training.arguments())
            is_embedded = (task := own_task(configs[run.name])) is not None and task.name in TASKS
        except (ValueError, OmegaConfBaseException) as error:
            raise AblationError(f"{run.name}: verl refuses its overrides: {error}") from error
        for key, least in (("actor_rollout_ref.rollout.n", 1), *([("task.seed", 0)] if is_embedded else [])):
            # verl would count with 8.0 and other text only once it has loaded everything
            value = OmegaConf.select(configs[run.name], key)
            if type(value) is not int or not least <= value < 2**63:
                valid = f"valid is an integer ≥ {least}. Type: {key}=8"
                raise AblationError(f"{run.name}: {key} is {as_typed(value)}; {valid}")
    return configs


def check_runs(configs: Mapping[str, DictConfig], *, here: bool) -> None:
    """Prepare the embedded tasks that the runs need, and run the driver's checks if they are trained here."""
    from grpo_verl_ext import preflight
    from grpo_verl_ext.tasks.chain_sum.prepare import prepare_missing
    from grpo_verl_ext.verl_plugin.usage import own_task

    for name, config in configs.items():
        prepare_missing(own_task(config))
        try:
            if here:  # a cluster has its own devices, files and packages: the job checks them
                preflight.check_training(config)
        except (ValueError, OmegaConfBaseException) as error:
            raise AblationError(f"{name}: {error}") from error


_KEYS = (*STARTS, f"{SECTION}.gold_responses.files", f"{SECTION}.reward_model.path", "critic.model.path")
_WEIGHTS = "reward.custom_reward_function.reward_kwargs.weights"
_MODULES = "VERL_USE_EXTERNAL_MODULES"


def inputs_of(config: DictConfig) -> dict[str, str]:
    """Key, or ``data.train_files[1]`` → SHA-256 of the user's models, data and code on this machine."""
    models, weights = setting(config, "distillation"), setting(config, _WEIGHTS)
    plain: Any = OmegaConf.to_container(models) if OmegaConf.is_dict(models) else {}
    keys = [*_KEYS, *(f"distillation.{name}" for name, _ in leaves(plain) if name.endswith(".model_path"))]
    named: dict[str, Any] = {key: setting(config, key) for key in keys}
    functions = [name for name in weights if is_function(name)] if isinstance(weights, Mapping) else []
    named |= {f"{_WEIGHTS}.{name}": file_of(name) for name in functions}
    modules = setting(config, f"{RUNTIME_ENVIRONMENT}.{_MODULES}") or os.environ.get(_MODULES, "")
    names = [name.strip() for name in modules.split(",") if name.strip()]
    named[_MODULES] = [file for file in map(module_file, names) if file]
    found = {}
    for key, files in named.items():
        for place, file in enumerate([files] if isinstance(files, str | Path) else files or []):
            if digest := sha256_here(file):
                found[f"{key}[{place}]" if place else key] = digest
    return found


def go(
    settings: GridSettings,
    runs: Sequence[GridRun],
    live: Live,
    *,
    cluster: "RayCluster | None" = None,
    configs: Mapping[str, DictConfig] | None = None,
) -> None:
    """Keep the grid in its folder, and train those of its runs that are to do, here or on the cluster."""
    with alone_in(Path(settings.folder), AblationError):
        check_records(runs)
        jobs = {run.name: run.job() for run in runs}
        for run in runs:
            job, folder = jobs[run.name], run.training.folder
            if job is not None and (cluster is None or job.address != cluster.address):
                name, at = job.submission_id, job.address
                stop = f"ray job stop {name} --address {at}, then rm '{folder / NOTE}'"
                said = f"{folder} was submitted to {at} as job {name}, which may be running"
                raise AblationError(f"{said}. To watch it type --ray-address {at}; to abandon it: {stop}")
        free = (run for run in runs if not jobs[run.name])
        new = [run for run in free if run.status().is_to_do]
        if settings.is_declared and new:
            _check_sources(new[0], configs)
        keep_grid(settings)
        waiting, at_work = [*(run for run in runs if jobs[run.name]), *new], list[Iterator[bool]]()
        while waiting or at_work:
            while waiting and len(at_work) < (cluster.at_once if cluster else 1):
                run = waiting.pop(0)
                if settings.is_declared and not jobs[run.name]:
                    _check_sources(run, configs)
                at_work.append(_attempt(run, live, cluster, configs))
            at_work = [attempt for attempt in at_work if next(attempt, False)]
            time.sleep(_POLL_SECONDS if at_work else 0)


def _check_sources(run: GridRun, configs: Mapping[str, DictConfig] | None) -> None:
    """Refuse a declared run of changed sources, or resumed with another commit, package, model or data."""
    revision = git_revision() or ""
    if revision.endswith(CHANGED):
        said = f"the checkout of grpo_verl_ext differs from its commit {revision.removesuffix(CHANGED)[:12]}"
        fix = "Commit the changes, or type: git worktree add ../clean HEAD, and run it there"
        raise AblationError(f"{said}; valid is one without changes, so that a record says what ran. {fix}")
    record = run.record()
    if record is None or not (record.inputs and run.status().metrics):
        return
    now = _made_with(run, configs)
    words = {"git_revision": "commit", "versions": "versions", "inputs": "model and data of hashes"}
    for name, word in words.items():
        was = getattr(record, name)
        if was != now[name] or str(was).endswith(CHANGED):
            said = f"{run.training.folder} was begun with the {word} {was}, and now it is {now[name]}"
            raise AblationError(f"{said}. Go back to that, or type: mv {run.training.folder} <another>")


def check_records(runs: Sequence[GridRun]) -> None:
    """Refuse to resume a run that was begun with other overrides, or with a key's in another order."""
    for run in runs:
        if (record := run.record()) is None:
            continue
        was = [f"steps={record.steps}", *sorted(record.overrides, key=key_of)]
        now = [f"steps={run.training.steps}", *sorted(run.training.overrides, key=key_of)]
        if was != now:
            said = f"{run.training.folder} was begun with other overrides"
            one = [each for each in was if each not in now] or was
            another = [each for each in now if each not in was] or now
            raise AblationError(f"{said}: {one}, and now it is {another}. Type folder=<another>")


def _made_with(run: GridRun, configs: Mapping[str, DictConfig] | None) -> dict[str, Any]:
    now = {"git_revision": git_revision(), "versions": versions(), "machine": machine()}
    return {**now, "inputs": inputs_of(configs[run.name]) if configs else {}}


def _attempt(
    run: GridRun, live: Live, cluster: "RayCluster | None", configs: Mapping[str, DictConfig] | None
) -> Iterator[bool]:
    """Train one run, and note in its folder what it is made with, when it ended, and why it failed.

    Yields True while it runs. Neither its failure nor a file that cannot be written ends the others.
    """
    training, reason = run.training, None
    failure, file = training.folder / FAILURE, training.folder / RUN_RECORD

    def show(metrics: Metrics) -> None:
        live.update(Text(f"now {run.name}, step {max(metrics, default=0)} of {training.steps}"))

    try:
        training.folder.mkdir(parents=True, exist_ok=True)  # it has begun, before its files are hashed
        failure.unlink(missing_ok=True)
        # a cluster has packages, files and processors of its own
        made_with = {"git_revision": None, "versions": {}} if cluster else _made_with(run, configs)
        status = run.status()  # an earlier attempt's record stays, if only what cannot be read
        if not file.exists() or not (status.metrics or status.state == "unreadable"):
            content = {"variant": run.variant, "seed": run.seed, "overrides": list(training.overrides)}
            content |= {"steps": training.steps, **made_with, "began": utc_now()}
            write_whole(file, json.dumps(content, indent=2) + "\n")
        live.console.print(f"{time.strftime('%H:%M:%S')} {run.name} begins")
        try:
            if cluster is None:
                training.go(show)
            else:
                for _ in cluster.train(training, run.job(), show):
                    yield True
            ended = {**parse_json(file.read_bytes(), dict[str, object]), "ended": utc_now()}
            write_whole(file, json.dumps(ended, indent=2) + "\n")
        except ProcessFailedError as error:
            reason = str(error)  # printed where the file cannot be written
            write_whole(failure, f"{error}\n")
            reason = None
        except CorruptFileError:  # `status` names the file, and the other runs go on
            pass
    except OSError as error:
        said = [reason, in_one_sentence(error, "folder=<another>") or str(error)]
        live.console.print(f"{run.name}: " + "\n".join(filter(None, said)), style="red")
    live.console.print(f"{time.strftime('%H:%M:%S')} {run.name}: {run.status().state}")
