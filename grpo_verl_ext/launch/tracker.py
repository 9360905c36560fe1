"""One run of a tracker that verl knows, for results that are not a training's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_verl_ext.preflight.environment import TRACKERS, known_loggers, lacking


class TrackerError(ValueError):
    """A tracker that verl does not have, that lacks its package or key here, or that could not be started."""


def pusher(name: str) -> Callable[..., None]:
    """Return what logs rows, by their steps, as one run of a project: (project, run, configuration, rows).

    Args:
        name: one of verl's values of ``trainer.logger``.

    Raises:
        TrackerError: before anything is sent, where verl would go on without a tracker that it cannot reach.
    """
    valid = [each for each in known_loggers() if each in TRACKERS]
    if name not in valid:
        raise TrackerError(f"--tracker is {name}; valid are {', '.join(valid)}. Type: --tracker wandb")
    if lacks := lacking(name):
        why, remedy = lacks
        raise TrackerError(f"--tracker is {name}, but {why}. Type: {remedy}")

    def push(
        project: str, run: str, config: Mapping[str, Any], rows: Sequence[tuple[int, Mapping[str, float]]]
    ) -> None:
        from verl.utils.tracking import Tracking

        # verl reads trainer.wandb_proxy from it
        settings = {"trainer": {}, **config}
        tracking = Tracking(
            project_name=project, experiment_name=run, default_backend=[name], config=settings
        )
        if not tracking.logger:
            raise TrackerError(f"--tracker is {name}, which could not be started; it has said why above")
        for step, row in rows:
            tracking.log(dict(row), step)
        tracking.finish()

    return push
