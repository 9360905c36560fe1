"""Make examples for a reward model from rollouts, and hold some out; every random choice follows a seed."""

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from grpo_verl_ext.iterate.settings import IterateError
from grpo_verl_ext.rewards.steps import ENDS, REWARDS, StepRewardError, checked_ends, pieces
from grpo_verl_ext.runs.verl_run import Response
from grpo_verl_ext.utils.documents import Document, read_lines
from grpo_verl_ext.utils.files import write_whole

Rule = Callable[..., object]
"""(response, ground truth) → a number or a dictionary with ``score``; of steps: verl's reward function."""


@dataclass(frozen=True)
class _Example(Document):
    prompt: str

    @classmethod
    def read(cls, file: Path) -> list[Any]:
        """Return the examples of a file."""
        return [*read_lines(file, cls, IterateError, what=cls.__name__, only_whole=True)]


@dataclass(frozen=True)
class Pair(_Example):
    """A better and a worse response to one prompt; the fields have TRL's names."""

    chosen: str
    rejected: str

    @classmethod
    def made(cls, responses: Iterable[Response], rule: Rule, *, per_prompt: int, seed: int) -> "list[Pair]":
        """Make pairs of different responses to one prompt at one step whose labels differ; none occurs twice.

        At most ``per_prompt`` for each prompt and step, drawn uniformly from all of them.
        """
        rng, pairs = random.Random(f"pairs/{seed}"), list[Pair]()
        for group in _by_prompt(responses):
            labelled = list[tuple[str, float]]()
            for each in group:
                result = rule(each.output, each.truth)
                label = result["score"] if isinstance(result, dict) else result
                if not isinstance(label, int | float):
                    seen = f"reward_model.label returned {label!r}"
                    raise IterateError(f"{seen}; valid is a number, or {{'score': number}}")
                labelled.append((each.output, label))
            every = {
                cls(group[0].prompt, better, worse): None
                for (better, high), (worse, low) in product(labelled, repeat=2)
                if high > low and better != worse
            }
            pairs += rng.sample([*every], min(per_prompt, len(every)))
        return pairs


@dataclass(frozen=True)
class Steps(_Example):
    """The steps of a response and whether each is right; the fields have TRL's names."""

    completions: list[str]
    labels: list[bool]

    @classmethod
    def made(cls, responses: Iterable[Response], rule: Rule, *, per_prompt: int, seed: int) -> "list[Steps]":
        """Label the steps of at most ``per_prompt`` different responses to one prompt at one training step.

        They are drawn uniformly. Responses without steps are left out.
        """
        rng, drawn, examples = random.Random(f"steps/{seed}"), list[Response](), list[Steps]()
        for group in _by_prompt(responses):
            different = [*{each.output: each for each in group}.values()]
            drawn += rng.sample(different, min(per_prompt, len(different)))
        for each in drawn:
            text, asked = each.output, {"ground_truth": each.truth, "extra_info": {"prompt": each.prompt}}
            said = rule(data_source="", solution_str=text, **asked)
            if not isinstance(said, dict) or ENDS not in said:
                valid = f"a dictionary with {REWARDS} and {ENDS}"
                raise IterateError(f"reward_model.step_label returned {said!r:.200}; valid is {valid}")
            try:
                ends = checked_ends(said, len(text))
            except StepRewardError as error:
                raise IterateError(f"reward_model.step_label: {error}") from error
            # of steps with the same end the last one counts
            right = {end: bool(reward > 0) for end, reward in zip(ends, said[REWARDS], strict=True)}
            if right:
                examples.append(cls(each.prompt, pieces(text, ends), [right[end] for end in sorted(right)]))
        return examples


def _by_prompt(responses: Iterable[Response]) -> Iterable[list[Response]]:
    """Return the responses to each prompt of a step; labels by two ground truths cannot be compared."""
    groups: dict[tuple[int, str, str], list[Response]] = defaultdict(list)
    for each in responses:
        groups[each.step, each.prompt, json.dumps(each.truth, sort_keys=True)].append(each)
    return groups.values()


def split_by_prompt(examples: Iterable[_Example], *, held_out: float, seed: int) -> Sequence[list[_Example]]:
    """Return examples to train on, and those held out.

    A prompt is on the same side in every round, so that a replay of earlier rounds has no held-out prompt.
    """
    sides = list[_Example](), list[_Example]()
    for each in examples:
        digest = hashlib.sha256(f"{seed}/{each.prompt}".encode()).digest()
        sides[int.from_bytes(digest[:8], "big") < held_out * 2**64].append(each)
    return sides


def write_examples(file: Path, examples: Iterable[_Example]) -> None:
    """Write examples atomically, one JSON object a line."""
    write_whole(file, "".join(json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in examples))
