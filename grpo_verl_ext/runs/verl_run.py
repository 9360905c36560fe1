"""Values as Hydra reads them on a command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_verl_ext.runs.metrics import Metrics, read_metrics
from grpo_verl_ext.runs.process import MARK, end_leftovers, run_logged
from grpo_verl_ext.utils.which_ray import WhichRay, which_ray

_PLAIN = re.compile(r"[A-Za-z0-9_./@%+:-]+")


def hydra_value(text: str | Path) -> str:
    """The text, quoted where Hydra's grammar would otherwise read a list, a sweep or an error out of it."""
    plain = str(text)
    if _PLAIN.fullmatch(plain):
        return plain
    # In Hydra's quotes a backslash is itself, unless it stands before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), plain)
    return f"'{escaped}'"


TRAINER = ("-m", "verl.trainer.main_ppo")
"""What Python starts."""
METRICS_FILE = "VERL_FILE_LOGGER_PATH"
"""Environment variable of verl's file logger."""
RAY_ENDS_WITHIN = 20.0
"""Seconds that Ray's processes have after their driver; the agents of a killed driver would take a minute."""


@dataclass(frozen=True)
class VerlRun:
    """``python -m verl.trainer.main_ppo`` in a folder that keeps all it leaves.

    ``attempt-N.log`` has verl's output, ``attempt-N.jsonl`` its metrics (verl starts that file anew whenever
    it starts), ``checkpoints/`` what a later attempt resumes from, ``rollouts/`` and ``validation/`` the
    responses.
    """

    folder: Path
    overrides: Sequence[str]
    steps: int

    @property
    def checkpoints(self) -> Path:
        """verl's ``trainer.default_local_dir``."""
        return self.folder / "checkpoints"

    @property
    def last_checkpoint(self) -> Path:
        """The folder of the checkpoint after the last step."""
        return self.checkpoints / f"global_step_{self.steps}"

    @property
    def rollouts(self) -> Path:
        """verl's ``trainer.rollout_data_dir``: the responses of each training step."""
        return self.folder / "rollouts"

    @property
    def validation(self) -> Path:
        """verl's ``trainer.validation_data_dir``: the responses of each validation."""
        return self.folder / "validation"

    def arguments(self) -> list[str]:
        """Arguments of ``main_ppo``; of the caller's, those that would lose track of the run do not win."""
        return [
            "trainer.logger=[console,file]",
            f"trainer.rollout_data_dir={hydra_value(self.rollouts.resolve())}",
            f"trainer.validation_data_dir={hydra_value(self.validation.resolve())}",
            *self.overrides,
            f"trainer.total_training_steps={self.steps}",
            f"trainer.default_local_dir={hydra_value(self.checkpoints.resolve())}",
            "trainer.resume_mode=auto",
            f"hydra.run.dir={hydra_value((self.folder / 'hydra').resolve())}",
        ]

    @property
    def ray(self) -> WhichRay:
        """The Ray that the run uses on this machine."""
        return which_ray(self.overrides)

    def command(self) -> list[str]:
        """What Python starts on this machine; as a job of a cluster the run is in that cluster's Ray."""
        return [*TRAINER, *self.arguments(), *self.ray.arguments]

    def metrics(self) -> Metrics:
        """Metrics by step over all attempts."""
        return read_metrics(self._attempts(".jsonl"))

    def is_finished(self) -> bool:
        """Has the last step been logged, which verl does after saving it, and is its checkpoint there?"""
        return self.last_checkpoint.is_dir() and self.steps in self.metrics()

    def next_attempt(self) -> Path:
        """Path of the next attempt's files, without a suffix; a log makes it an attempt."""
        return self.folder / f"attempt-{len(self._attempts('.log')) + 1}"

    def go(self, on_metrics: Callable[[Metrics], None] = lambda _: None) -> None:
        """Start verl, or start it again, and wait until it and its Ray are gone.

        Nobody else may start the same run meanwhile: what an earlier attempt left running is ended.

        Args:
            on_metrics: called twice a second with `metrics`.

        Raises:
            ProcessFailedError: verl failed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        attempt = self.next_attempt()
        metrics = attempt.with_suffix(".jsonl").resolve()
        mark = str(self.folder.resolve())
        end_leftovers(mark, patience=0)
        try:
            run_logged(
                [sys.executable, *self.command()],
                attempt.with_suffix(".log"),
                environment={**os.environ, METRICS_FILE: str(metrics), MARK: mark},
                while_running=lambda: on_metrics(self.metrics()),
            )
        finally:
            end_leftovers(mark, patience=RAY_ENDS_WITHIN)

    def _attempts(self, suffix: str) -> list[Path]:
        files = self.folder.glob(f"attempt-*{suffix}")
        return sorted(files, key=lambda file: int(file.stem.removeprefix("attempt-")))
