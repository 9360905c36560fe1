"""Make examples for a reward model from rollouts, hold some out, and replay earlier ones.

An example is a pair of a better and a worse response, or a response that is cut into steps, which a rule
labels. Every random choice follows a seed.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeVar

from grpo_verl_ext.iterate.settings import IterateError, RewardModelSettings, Round
from grpo_verl_ext.rewards.steps import CHARACTER_ENDS, REWARDS, StepRewardError, pieces, step_end_characters
from grpo_verl_ext.runs.dumps import CorruptDumpError, Response, dump_file, read_dump
from grpo_verl_ext.utils.documents import Document, parse_lines
from grpo_verl_ext.utils.files import write_whole


class Example(Protocol):
    """What a reward model is trained on: a pair, or the labelled steps of a response."""

    @property
    def prompt(self) -> str:
        """The prompt's text."""


_AnyExample = TypeVar("_AnyExample", bound=Example)


@dataclass(frozen=True)
class Pair(Document):
    """A better and a worse response to one prompt; the fields have TRL's names."""

    prompt: str
    chosen: str
    rejected: str


def make_pairs(samples: Iterable[Sample], *, per_prompt: int, seed: int) -> list[Pair]:
    """Make pairs of different responses to one prompt at one step whose labels differ; none occurs twice.

    At most ``per_prompt`` for each prompt and step, drawn uniformly from all of them. A prompt that the data
    has with two ground truths counts as two: labels by one cannot be compared with labels by the other.
    """
    rng = random.Random(f"pairs/{seed}")
    groups: dict[tuple[int, str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.step, sample.prompt, sample.truth].append(sample)
    pairs: list[Pair] = []
    for group in groups.values():
        every = {
            Pair(better.prompt, better.response, worse.response): None
            for better, worse in product(group, repeat=2)
            if better.label > worse.label and better.response != worse.response
        }
        pairs += rng.sample(list(every), min(per_prompt, len(every)))
    return pairs


def split_by_prompt(
    pairs: Iterable[_AnyExample], *, held_out: float, seed: int
) -> tuple[list[_AnyExample], list[_AnyExample]]:
    """Split pairs into those to train on and those held out.

    A prompt is on the same side in every round, so that a replay of earlier rounds has no held-out prompt.
    """
    sides: tuple[list[_AnyExample], list[_AnyExample]] = ([], [])
    for pair in pairs:
        digest = hashlib.sha256(f"{seed}/{pair.prompt}".encode()).digest()
        sides[int.from_bytes(digest[:8], "big") < held_out * 2**64].append(pair)
    return sides


def replayed(new: int, history: Sequence[_AnyExample], *, share: float, seed: int) -> list[_AnyExample]:
    """Draw pairs of all earlier rounds uniformly, without replacement.

    Their number makes them ``share`` of the mixture with ``new`` pairs: n = new · share / (1 − share),
    rounded; all of them if there are fewer.
    """
    wanted = round(new * share / (1 - share))
    return random.Random(f"replay/{seed}").sample(list(history), min(wanted, len(history)))


def write_pairs(file: Path, pairs: Iterable[Any]) -> None:
    """Write pairs atomically, as one JSON object per line."""
    write_whole(file, "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs))


def read_examples(file: Path, kind: type[_AnyExample]) -> list[_AnyExample]:
    """Return the examples of one kind that `write_pairs` wrote.

    Raises:
        IterateError: a line is not such an example.
    """
    lines = file.read_bytes().split(b"\n")[:-1]
    return [*parse_lines(file, lines, kind, IterateError, what=f"not a {kind.__name__.lower()}")]


LabelRule = Callable[[str, object], object]
"""(response, ground truth) → a number or a dictionary with ``score``, as for verl's reward functions."""


@dataclass(frozen=True)
class Sample:
    """One labelled response; its texts are without special tokens, as verl writes them.

    Attributes:
        truth: the ground truth of its prompt, as JSON.
    """

    prompt: str
    response: str
    label: float
    step: int
    truth: str = ""


def read_rollouts(folder: Path, steps: int, rule: LabelRule) -> tuple[list[Sample], list[int]]:
    """Return the labelled responses of all steps, and the steps without a file.

    Raises:
        IterateError: a line is not a record that verl wrote, no step has a file, or the rule does not
            return a number.
    """
    responses, missing = _read_dumps(folder, steps)
    samples = [
        Sample(
            response.prompt,
            response.output,
            label_of(rule(response.output, response.truth)),
            step,
            json.dumps(response.truth, sort_keys=True),
        )
        for step, response in responses
    ]
    return samples, missing


def _read_dumps(folder: Path, steps: int) -> tuple[list[tuple[int, Response]], list[int]]:
    """Return each response with its step, in the order in which verl wrote them, and steps without a file.

    A file is missing where a training was killed between its checkpoint and its dump.
    """
    files = {step: dump_file(folder, step) for step in range(1, steps + 1)}
    missing = [step for step, file in files.items() if not file.is_file()]
    if len(missing) == steps:
        raise IterateError(
            f"{folder} has no rollouts of steps 1 … {steps}; was trainer.rollout_data_dir overridden?"
        )
    try:
        return [
            (step, response)
            for step, file in files.items()
            if step not in missing
            for response in read_dump(file)
        ], missing
    except CorruptDumpError as error:
        raise IterateError(str(error)) from error


def label_of(result: object) -> float:
    """Return the number in the result of a rule."""
    value = result["score"] if isinstance(result, dict) else result
    if not isinstance(value, int | float):
        raise IterateError(
            f"reward_model.label returned {result!r}; valid is a number, or {{'score': number}}"
        )
    return float(value)


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


def examples_of(this: Round, rule: Callable[..., object]) -> tuple[Sequence[Example], int, list[int]]:
    """Return what a round's rollouts teach, the number of responses, and the steps without rollouts."""
    drawn = {"per_prompt": this.settings.reward_model.pairs_per_prompt, "seed": this.seed}
    folder, steps = this.rollouts, this.settings.policy.steps
    if example_kind(this.settings.reward_model) is Pair:
        samples, missing = read_rollouts(folder, steps, rule)
        return make_pairs(samples, **drawn), len(samples), missing
    responses, missing = _read_dumps(folder, steps)
    return make_step_examples(responses, rule, **drawn), len(responses), missing
