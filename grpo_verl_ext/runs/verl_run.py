"""Start verl's trainer in a folder of its own, resume it, and read what it wrote: metrics and responses."""

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, FiniteFloat

from grpo_verl_ext.runs.child_process import MARK, ProcessFailedError, end_leftovers, run_logged
from grpo_verl_ext.utils.documents import read_lines
from grpo_verl_ext.utils.files import write_whole
from grpo_verl_ext.utils.which_ray import which_ray

Metrics = dict[int, dict[str, float]]
"""Step → name → value."""

TRAINED = "training/global_step"
"""Metric that verl logs with every training step, and not with a validation alone."""


class CorruptFileError(ValueError):
    """A file cannot be read, or has a line that verl did not write; the message says where."""


def read_metrics(files: Iterable[Path]) -> Metrics:
    """Return metrics by step; a later file wins for a step that it repeats.

    verl's logger writes null for NaN and for infinities; here they are NaN, and so is a number above 1e150,
    whose square may overflow. Values that are not numbers, such as lists, are left out.
    A last line without a line end is skipped: verl was killed, or is still writing.
    """
    metrics: Metrics = {}
    for file in files:
        for record in read_lines(file, _Record, CorruptFileError, what="verl's metrics", only_whole=True):
            metrics.setdefault(record.step, {}).update(
                (name, float(value) if value is not None and abs(value) <= 1e150 else math.nan)
                for name, value in record.data.items()
                if value is None or isinstance(value, int | float)
            )
    return metrics


@dataclass(frozen=True)
class _Record:
    step: Annotated[int, Field(ge=0, lt=2**31)]
    data: dict[str, Any]


_PADDING = re.compile(r"pad[0-9a-f]{32}")
"""Prompt ids of the rows with which verl fills up a batch; it dumps them, too."""
_NUMBERS = re.compile(r"_[^_]*_\d+$")
"""The end of verl's key ``<prompt>_<session>_<output>``; any other key is the prompt's."""


@dataclass(frozen=True)
class Response:
    """One line of a dump; its texts are without special tokens, as verl writes them.

    Attributes:
        prompt_id: equal for all responses to one prompt of a step.
        truth: the ground truth, as in the dataset; None if it has none.
    """

    prompt_id: Annotated[str, Field(alias="uid"), AfterValidator(partial(_NUMBERS.sub, ""))]
    prompt: Annotated[str, Field(alias="input")]
    output: str
    truth: Annotated[object, Field(alias="gts", default=None)]
    score: FiniteFloat
    step: int


def read_dump(file: Path) -> list[Response]:
    """Return the responses in a file, ``<step>.jsonl``, in verl's order, without padding."""
    responses = read_lines(file, Response, CorruptFileError, what="verl's dump")
    return [response for response in responses if not _PADDING.fullmatch(response.prompt_id)]


_PLAIN = re.compile(r"[A-Za-z0-9_./@%+:-]+")
_ATTEMPT = re.compile(r"attempt-([0-9]+)")
_LOGGERS = re.compile(r"\+*trainer\.logger=(.*)")


def hydra_value(text: str | Path) -> str:
    """Return the text, quoted where Hydra's grammar would otherwise not read it as one string."""
    plain = str(text)
    # Inside Hydra's quotes a backslash escapes only a quote; elsewhere it is literal.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), plain)
    return plain if _PLAIN.fullmatch(plain) else f"'{escaped}'"


TRAINER = ("-m", "verl.trainer.main_ppo")
"""Arguments with which Python starts verl's trainer."""
METRICS_FILE = "VERL_FILE_LOGGER_PATH"
"""Environment variable with the path to which verl's file logger writes."""


@dataclass
class VerlRun:
    """One training, ``python -m verl.trainer.main_ppo``, with a folder for everything that it writes.

    ``attempt-N.log`` has verl's output and ``attempt-N.jsonl`` its metrics (verl overwrites that file
    whenever it starts). ``checkpoints/`` is where a later attempt resumes; ``rollouts/`` and ``validation/``
    have the responses. A tracker such as wandb shows the run as ``tracked_as``, project and experiment.
    """

    folder: Path
    overrides: Sequence[str]
    steps: int
    tracked_as: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        self.checkpoints = self.folder / "checkpoints"
        self.last_checkpoint = self.checkpoints / f"global_step_{self.steps}"
        self.rollouts, self.validation = self.folder / "rollouts", self.folder / "validation"
        self.ray = which_ray(self.overrides)
        """The Ray that the run will use on this machine."""

    def arguments(self) -> list[str]:
        """Return the arguments of ``main_ppo``; ours win where an override would lose track of the run."""
        names = zip(("project_name", "experiment_name"), self.tracked_as or (), strict=False)
        chosen = [found[1] for found in map(_LOGGERS.fullmatch, self.overrides) if found] or ["console"]
        # A run is resumed from verl's file logger.
        loggers = dict.fromkeys([*re.findall(r"""[^\s,\[\]'"]+""", chosen[-1]), "file"])
        return [
            *(f"trainer.{key}={hydra_value(name)}" for key, name in names),
            f"trainer.rollout_data_dir={hydra_value(self.rollouts.resolve())}",
            f"trainer.validation_data_dir={hydra_value(self.validation.resolve())}",
            *self.overrides,
            f"trainer.logger=[{','.join(loggers)}]",
            f"trainer.total_training_steps={self.steps}",
            f"trainer.default_local_dir={hydra_value(self.checkpoints.resolve())}",
            "trainer.resume_mode=auto",
            f"hydra.run.dir={hydra_value((self.folder / 'hydra').resolve())}",
        ]

    def command(self) -> list[str]:
        """Return Python's arguments for a run on this machine; a job of a cluster uses that cluster's Ray."""
        return [*TRAINER, *self.arguments(), *self.ray.arguments]

    def metrics(self) -> Metrics:
        """Return the metrics by step over all attempts."""
        attempts = self._attempts(".jsonl")
        return read_metrics(attempts[number] for number in sorted(attempts))

    def has_ended(self, metrics: Metrics) -> bool:
        """Whether the last training step is in the metrics; a validation of that step alone is not enough."""
        return TRAINED in metrics.get(self.steps, {})

    def is_finished(self) -> bool:
        """Whether the last step was logged, which verl does after saving it, and its checkpoint is there."""
        return self.last_checkpoint.is_dir() and self.has_ended(self.metrics())

    def check_ended(self, log: Path) -> None:
        """Refuse a run that ended with status 0 before its last step."""
        metrics = self.metrics()
        if not self.has_ended(metrics):
            last = max((step for step, values in metrics.items() if TRAINED in values), default=0)
            seen = f"verl ended with status 0 after step {last} of {self.steps}; trainer.total_epochs ends a "
            seen += f"training that has seen its data so often. Its whole output is in {log}"
            raise ProcessFailedError(f"{seen}. Type: trainer.total_epochs={self.steps}")

    def next_attempt(self) -> Path:
        """Return the path of the next attempt's files, without suffix; a log marks an attempt as started."""
        return self.folder / f"attempt-{max(self._attempts('.log'), default=0) + 1}"

    def go(self, on_metrics: Callable[[Metrics], None] = lambda _: None) -> None:
        """Start verl, or resume it, and wait until it and its Ray have ended.

        Processes that an earlier attempt left running are ended: no other process may start the same run.
        ``on_metrics`` is called twice a second with `metrics`. ProcessFailedError: verl failed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        attempt, mark = self.next_attempt(), str(self.folder.resolve())
        log, metrics = attempt.with_suffix(".log"), str(attempt.with_suffix(".jsonl").resolve())
        end_leftovers(mark, patience=0)
        self.choose_checkpoint(attempt.name)
        try:
            run_logged(
                [sys.executable, *self.command()],
                log,
                environment={**os.environ, METRICS_FILE: metrics, MARK: mark},
                while_running=lambda: on_metrics(self.metrics()),
            )
        finally:
            end_leftovers(mark, patience=20)  # agents of a Ray whose driver was killed need a minute
        self.check_ended(log)

    def choose_checkpoint(self, attempt: str) -> None:
        """Make verl resume after the last step that was saved and logged; without one, from the start.

        verl removes old checkpoints (``trainer.max_actor_ckpt_to_keep``), saves, validates and logs, in this
        order. Killed before it logs, it would resume after that step, whose metrics would be missing: its
        checkpoint is moved aside. Killed while it saves, it would look for one that it has removed.
        """
        tracker = self.checkpoints / "latest_checkpointed_iteration.txt"
        if not tracker.exists():
            return
        logged = {step for step, values in self.metrics().items() if TRAINED in values}
        # One that verl removed is still there as a folder, with the state of the data alone.
        saved = {
            int(actor.parent.name.rpartition("_")[2]): actor.parent
            for actor in self.checkpoints.glob("global_step_*/actor")
        }
        for step in saved.keys() - logged:
            saved[step].rename(self.checkpoints / f"unlogged-step-{step}-before-{attempt}")
        if whole := saved.keys() & logged:
            write_whole(tracker, str(max(whole)))
        else:
            tracker.unlink()

    def _attempts(self, suffix: str) -> dict[int, Path]:
        files = self.folder.glob(f"attempt-*{suffix}")
        return {int(found[1]): file for file in files if (found := _ATTEMPT.fullmatch(file.stem))}
