"""Make examples for a process reward model from rollouts: responses cut into steps that a rule labels."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grpo_verl_ext.iterate.preferences import Example, Pair
from grpo_verl_ext.iterate.settings import IterateError, RewardModelSettings
from grpo_verl_ext.rewards.step_ends import (
    CHARACTER_ENDS,
    REWARDS,
    StepRewardError,
    pieces,
    step_end_characters,
)
from grpo_verl_ext.runs.dumps import Response
from grpo_verl_ext.utils.documents import Document

StepRule = Callable[..., object]
"""A reward function in verl's form that returns ``step_rewards`` and ``step_ends``."""


@dataclass(frozen=True)
class Steps(Document):
    """The steps of a response and whether each is right; the fields have TRL's names."""

    prompt: str
    completions: list[str]
    labels: list[bool]


def example_kind(settings: RewardModelSettings) -> type[Example]:
    """Return what the reward model is trained on: `Pair`, or with ``step_label`` `Steps`."""
    return Pair if settings.step_label is None else Steps


def make_step_examples(
    responses: Iterable[tuple[int, Response]], rule: StepRule, *, per_prompt: int, seed: int
) -> list[Steps]:
    """Label the steps of different responses to one prompt at one training step.

    At most ``per_prompt`` responses for each prompt and step, drawn uniformly. Responses without steps are
    left out.

    Raises:
        IterateError: the rule returned something other than steps that fit the response.
    """
    rng = random.Random(f"steps/{seed}")
    groups: dict[tuple[int, str, str], dict[str, Response]] = defaultdict(dict)
    for step, response in responses:
        truth = json.dumps(response.truth, sort_keys=True)
        groups[step, response.prompt, truth].setdefault(response.output, response)
    drawn = [
        response
        for group in groups.values()
        for response in rng.sample([*group.values()], min(per_prompt, len(group)))
    ]
    examples = (labelled(rule, each.prompt, each.output, each.truth) for each in drawn)
    return [example for example in examples if example.labels]


def labelled(rule: StepRule, prompt: str, response: str, truth: object) -> Steps:
    """Ask the rule for the steps of one response; those with a reward above 0 are right.

    Of steps with the same end the last one counts.

    Raises:
        IterateError: the rule returned something other than steps that fit the response.
    """
    returned = rule(data_source="", solution_str=response, ground_truth=truth, extra_info={"prompt": prompt})
    if not isinstance(returned, dict) or CHARACTER_ENDS not in returned:
        raise IterateError(
            f"reward_model.step_label returned {returned!r:.200}; valid is a dictionary with {REWARDS} and "
            f"{CHARACTER_ENDS}"
        )
    try:
        ends = step_end_characters(returned, range(len(response)), lambda _: response)
    except StepRewardError as error:
        raise IterateError(f"reward_model.step_label: {error}") from error
    right = {end: reward > 0 for end, reward in zip(ends, returned[REWARDS], strict=True)}
    return Steps(prompt, pieces(response, ends), [bool(right[end]) for end in sorted(right)])
