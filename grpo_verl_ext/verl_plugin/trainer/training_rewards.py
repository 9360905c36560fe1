"""Log the means of all that the reward function reports about the responses of a training step.

verl logs these means of a validation, and of a training step only those of the reward itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from statistics import fmean
from typing import Any

import numpy as np
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from grpo_verl_ext.verl_plugin.trainer.kv_batch import last_outputs
from grpo_verl_ext.verl_plugin.trainer.rollout_batch import nested

Reported = Mapping[str, Any]
"""verl's ``reward_extra_info`` of one response."""


class TrainingRewardMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Add ``training_reward/<key>``, the mean over the step's responses, for every numeric key."""

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Run verl's step, then read what was reported."""
        batch = super().step(metrics, timing_raw)
        metrics.update({f"training_reward/{key}": mean for key, mean in means(reported(batch)).items()})
        return batch


def reported(batch: Any) -> list[Reported]:
    """Return the reward function's report on each response: no padding, and the last output of a session."""
    extra_fields = tu.get(nested(batch, "extra_fields"), "extra_fields")
    last = last_outputs(batch.keys)
    return [
        extra.get("reward_extra_info") or {}
        for row, (extra, tag) in enumerate(zip(extra_fields, batch.tags, strict=True))
        if last[row] == row and not tag.get("is_padding", False)
    ]


def means(reports: Iterable[Reported]) -> dict[str, float]:
    """Return the mean of every numeric key over the reports that have it; true counts as 1."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for key, value in report.items():
            if isinstance(value, Real | np.bool_):
                values.setdefault(key, []).append(float(value))
    return {key: fmean(own) for key, own in values.items()}


def right_by_other_responses(reports: Sequence[Reported]) -> float | None:
    """Return the share of responses that are right and not the wanted one: the mean of acc · (1 − gold).

    Only reports with both keys count; None without one.
    """
    known = [(report["acc"], report["gold"]) for report in reports if {"acc", "gold"} <= report.keys()]
    return fmean(acc * (1 - gold) for acc, gold in known) if known else None
