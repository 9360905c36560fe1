"""What a run's folder says: its state, its record, its job, and whether it can be compared with others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations, product
from pathlib import Path

from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.ablation.grid import AblationError, GridRun, runs_of
from grpo_verl_ext.runs.provenance import CHANGED
from grpo_verl_ext.runs.verl_run import CorruptFileError, Metrics
from grpo_verl_ext.utils.documents import Document, read_if_there
from grpo_verl_ext.utils.keys import key_of

FAILURE = "failed.txt"
RUN_RECORD = "run.json"
NOTE = "job.json"
STEP_SECONDS = "timing_s/step"
STARTS = (
    *("actor_rollout_ref.model.path", "data.train_files", "data.val_files"),
    *("reward.custom_reward_function.path", "reward.reward_model.model_path"),
)
"""Keys of the files that every record has; those of the others are compared where both records have them."""
_Run = tuple[str, int]  # variant, seed


class State(str, Enum):
    """The state of a run."""

    WAITING = "waiting"
    BEGUN = "begun"  # and not finished; the next attempt resumes from the last checkpoint
    FAILED = "failed"
    FINISHED = "finished"
    UNREADABLE = "unreadable"
    """A file of it cannot be read: it is neither started nor compared until that is mended or moved."""


@dataclass(frozen=True)
class Record:
    """What a run was begun with."""

    overrides: list[str]
    steps: int
    git_revision: str | None
    versions: dict[str, str]
    inputs: dict[str, str] = field(default_factory=dict)
    """Key of verl's configuration → SHA-256 of the model or the data that it names."""
    machine: str | None = None
    """Processor and threads; None: a cluster's."""
    began: str | None = None
    ended: str | None = None
    """When the first attempt began, and when the run was finished, in UTC."""


@dataclass(frozen=True)
class Job(Document):
    """A submitted Ray job whose end has not been seen."""

    submission_id: str
    address: str
    attempt: str  # name of the attempt's files, without a suffix


@dataclass
class RunStatus:
    """A run's state and metrics at the time of reading."""

    run: GridRun
    state: State
    metrics: Metrics
    reason: str | None = None  # why the run failed, or what cannot be read

    def __post_init__(self) -> None:
        self.step_seconds = [each[STEP_SECONDS] for each in self.metrics.values() if STEP_SECONDS in each]
        self.has_steps = bool(self.metrics) or self.state is State.UNREADABLE  # if only what cannot be read

    def is_to_do(self, *, retry_failed: bool) -> bool:
        """Whether ``ablate run`` starts it."""
        return self.state in (State.WAITING, State.BEGUN) or (self.state is State.FAILED and retry_failed)


def status_of(run: GridRun) -> RunStatus:
    """Read a run's files: it is finished once its last step is logged, with or without checkpoints."""
    metrics: Metrics = {}
    try:
        metrics = run.training.metrics()
        if run.training.has_ended(metrics):
            return RunStatus(run, State.FINISHED, metrics)
        file = run.training.folder / FAILURE
        if file.exists():
            return RunStatus(run, State.FAILED, metrics, file.read_text(encoding="utf-8", errors="replace"))
    except CorruptFileError as error:
        return RunStatus(run, State.UNREADABLE, {}, str(error))
    except OSError as error:
        why = f"{error.filename} cannot be read ({error.strerror}). It was left in place; move it away"
        return RunStatus(run, State.UNREADABLE, metrics, why)
    return RunStatus(run, State.BEGUN if run.training.folder.is_dir() else State.WAITING, metrics)


def read_record(run: GridRun) -> Record | None:
    """What the run was begun with; None if it has not begun."""
    return read_if_there(run.training.folder / RUN_RECORD, Record, AblationError, "the record of a run")


def noted_job(folder: Path) -> Job | None:
    """The run's job whose end has not been seen; None if there is none."""
    then = "check with `ray job list` whether the run's job is there, and move the file away"
    return read_if_there(folder / NOTE, Job, AblationError, "the note of a job", then)


def unlike_others(records: Mapping[_Run, Record | None], settings: GridSettings) -> dict[_Run, str]:
    """Return why a finished run is left out: another training than the grid's, or than it is compared with.

    A run is compared with the baseline's of the same seed, and those that remain within each declared
    comparison: versions, in a declared comparison commits, and model and data, unless the two variants choose
    them differently. A record of an earlier version, without any of them, is judged by its overrides alone.
    """
    known = {run: each for run, each in records.items() if each is not None and (each.inputs or each.began)}
    trainings = {(run.variant, run.seed): run.training for run in runs_of(settings)}
    found = {}
    for run, record in records.items():
        reasons = []
        if record is None:
            reasons += ["it has no record, as other runs have"] if settings.is_declared and known else []
        elif {*record.overrides} != {*trainings[run].overrides} or record.steps != settings.steps:
            reasons.append("its overrides or steps are not those of the grid")
        if run in known and settings.is_declared and str(known[run].git_revision).endswith(CHANGED):
            reasons.append(f"its sources differed from their commit ({known[run].git_revision})")
        found[run] = "; ".join([*reasons, *_unlike(run, settings.base_variant, known, settings)])
    compared = [each.weights for each in (*settings.comparisons, settings.own_control) if each]
    pairs = [pair for variants in compared for pair in combinations(variants, 2)]
    for (one, other), seed in product(pairs, settings.seeds):
        if found.get((one, seed)) == found.get((other, seed)) == "":
            found[one, seed] = "; ".join(_unlike((one, seed), other, known, settings))
    return {run: why for run, why in found.items() if why}


def _unlike(run: _Run, variant: str, known: Mapping[_Run, Record], settings: GridSettings) -> Iterator[str]:
    """Say in what a run differs from that of the variant with the same seed."""
    record, other, of_other = known.get(run), known.get((variant, run[1])), f"{variant}/seed-{run[1]}"
    if record is None or other is None:
        return
    for name in sorted(record.versions.keys() | other.versions.keys()):
        one, another = (each.versions.get(name, "none") for each in (record, other))
        if one != another:
            yield f"it was made with {name} {one}, and {of_other} with {another}"
    commit, another = (str(each.git_revision).removesuffix(CHANGED) for each in (record, other))
    if settings.is_declared and commit != another:
        yield f"its commit is {commit}, and that of {of_other} {another}"
    chosen = {key_of(word) for word in {*settings.overrides[run[0]]} ^ {*settings.overrides[variant]}}
    if any(each.partition(".")[0] == "task" for each in chosen):
        return  # it chooses model and data together
    for key in sorted(record.inputs.keys() | other.inputs.keys()):
        hashes = {record.inputs.get(key), other.inputs.get(key)}
        is_chosen = any(file.startswith(each) for each in chosen for file in (*STARTS, key))
        is_judged = not is_chosen and (None not in hashes or key.partition("[")[0] in STARTS)
        if is_judged and len(hashes) > 1:
            yield f"its {key} is another than that of {of_other}"
