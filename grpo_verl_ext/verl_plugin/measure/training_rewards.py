"""Log mean and spread of all that the reward function reports about the responses of a training step.

verl logs of a training step only the mean of the reward itself; of a validation the means, and the spread
between the responses to a prompt, to which the spread over all responses is added here.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from grpo_verl_ext.rewards.functions import is_number
from grpo_verl_ext.verl_plugin.batch.fields import are_responses, nested, were_sampled
from grpo_verl_ext.verl_plugin.batch.sessions import last_outputs

_Reported = Mapping[str, Any]
"""verl's ``reward_extra_info`` of one response."""


class TrainingRewardMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Add for every numeric key ``training_reward/<key>``, the mean over the step's responses.

    ``training_reward_std/<key>`` is their standard deviation, ``training_reward_group_std/<key>`` the mean
    over prompts of the standard deviation between the responses to one; both divide by their number.
    """

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Run verl's step, then read what was reported."""
        batch = super().step(metrics, timing_raw)
        by_prompt = _reported_by_prompt(batch)
        reports = list(chain.from_iterable(by_prompt.values()))
        metrics.update({f"training_reward/{key}": mean for key, mean in means(reports).items()})
        metrics.update({f"training_reward_std/{key}": std for key, std in _stds(reports).items()})
        groups = means(map(_stds, by_prompt.values()))
        metrics.update({f"training_reward_group_std/{key}": std for key, std in groups.items()})
        return batch

    def _val_metrics_update(
        self,
        data_sources: Sequence[str],
        sample_uids: Sequence[str],
        reward_extra_infos_dict: Mapping[str, Sequence[Any]],
        *more: Any,
        **named: Any,
    ) -> dict[str, float]:
        """Add ``validation_reward_std/<data source>/<key>``, the standard deviation over its responses."""
        by_verl: dict[str, float] = super()._val_metrics_update(
            data_sources, sample_uids, reward_extra_infos_dict, *more, **named
        )
        spread = stds_by_source(data_sources, reward_extra_infos_dict)
        return by_verl | {f"validation_reward_std/{name}": std for name, std in spread.items()}


def stds_by_source(sources: Sequence[str], values: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Return ``<source>/<key>`` → `_stds` over its responses; each key has a value or None for every one.

    A key with more values is left out: verl mixes a reward function's own ``reward`` with the score.
    """
    whole = {key: own for key, own in values.items() if len(own) == len(sources)}
    by_source: dict[str, list[_Reported]] = {}
    for source, *row in zip(sources, *whole.values(), strict=True):
        by_source.setdefault(str(source), []).append(dict(zip(whole, row, strict=True)))
    return {f"{source}/{key}": std for source, own in by_source.items() for key, std in _stds(own).items()}


def reported_of_sampled(batch: Any) -> list[_Reported]:
    """Return the reward function's report on each response that the policy sampled."""
    return list(chain.from_iterable(_reported_by_prompt(batch, only_sampled=True).values()))


def _reported_by_prompt(batch: Any, *, only_sampled: bool = False) -> dict[str, list[_Reported]]:
    """Return the reports by prompt, the ``uid`` in verl's keys ``{uid}_{session}_{index}``.

    Of each response that is no padding, by the last output of its session.

    Args:
        only_sampled: without stored responses.
    """
    rows = nested(batch, "extra_fields")
    counts = were_sampled(batch, rows) if only_sampled else are_responses(batch)
    last = last_outputs(batch.keys)
    reports: dict[str, list[_Reported]] = {}
    for row, (key, extra) in enumerate(zip(batch.keys, tu.get(rows, "extra_fields"), strict=True)):
        if last[row] == row and counts[row]:
            reports.setdefault(key.rsplit("_", 2)[0], []).append(extra.get("reward_extra_info") or {})
    return reports


def means(reports: Iterable[_Reported]) -> dict[str, float]:
    """Return the mean of every numeric key over the reports that have it; true counts as 1."""
    return {key: fmean(own) for key, own in _numbers(reports).items()}


def _stds(reports: Iterable[_Reported]) -> dict[str, float]:
    """Return the standard deviation of every numeric key over the reports that have it; 0 for one report."""
    return {key: float(np.std(own)) for key, own in _numbers(reports).items()}


def _numbers(reports: Iterable[_Reported]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for report in reports:
        for key, value in report.items():
            if is_number(value):
                values.setdefault(key, []).append(float(value))
    return values


def right_by_other_responses(reports: Sequence[_Reported]) -> float | None:
    """Return the share of responses that are right and not the wanted one: the mean of acc · (1 − gold).

    Only reports with both keys count; None without one.
    """
    known = [(report["acc"], report["gold"]) for report in reports if {"acc", "gold"} <= report.keys()]
    return fmean(acc * (1 - gold) for acc, gold in known) if known else None
