"""One run of a tracker that verl knows, for results that are not a training's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_verl_ext.utils.errors import TrackerError
from grpo_verl_ext.verl_plugin.preflight.trackers import PACKAGES, known_loggers, lacking


class Tracker:
    """verl's ``Tracking`` with one backend.

    Args:
        name: one of verl's values of ``trainer.logger``.

    Raises:
        TrackerError: before anything is sent; names what to type.
    """

    def __init__(self, name: str) -> None:
        valid = [each for each in known_loggers() if each in PACKAGES]
        if name not in valid:
            raise TrackerError(f"--tracker is {name}; valid are {', '.join(valid)}. Type: --tracker wandb")
        if lacks := lacking(name):
            why, remedy = lacks
            raise TrackerError(f"--tracker is {name}, but {why}. Type: {remedy}")
        self._name = name

    def push(
        self,
        project: str,
        run: str,
        config: Mapping[str, Any],
        rows: Sequence[tuple[int, Mapping[str, float]]],
    ) -> None:
        """Log the rows, by their steps, as one run of a project.

        Raises:
            TrackerError: verl goes on without a tracker that it cannot reach, and this does not.
        """
        from verl.utils.tracking import Tracking

        # verl reads trainer.wandb_proxy from it
        tracking = Tracking(
            project_name=project,
            experiment_name=run,
            default_backend=[self._name],
            config={"trainer": {}, **config},
        )
        if not tracking.logger:
            raise TrackerError(
                f"--tracker is {self._name}, which could not be started; it has said why above"
            )
        for step, row in rows:
            tracking.log(dict(row), step)
        tracking.finish()
