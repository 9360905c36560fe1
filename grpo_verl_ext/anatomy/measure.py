"""Compute everything that ``grpo-verl-ext anatomy`` reports about a dump of rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from grpo_verl_ext.algorithms.validation import TensorError
from grpo_verl_ext.anatomy.dump import (
    HOW_TO_DUMP,
    AnatomyError,
    load_tokenizer,
    read_steps,
    response_length,
    token_ids,
)
from grpo_verl_ext.anatomy.kl_estimators import KlReport, measure_bias
from grpo_verl_ext.anatomy.weights import (
    COMPARED_ALGORITHMS,
    MICRO_BATCH_SIZE,
    Cells,
    StepResponses,
    Weighed,
    cells_of,
    relative,
    token_weights,
)
from grpo_verl_ext.catalogue.evaluation import LARGEST_REWARD
from grpo_verl_ext.runs.dumps import Response

_SCORES_NAMED = 8
"""If there are more different scores, a message names only the first and the last."""


@dataclass(frozen=True)
class AnatomySettings:
    """Options of ``grpo-verl-ext anatomy``.

    Attributes:
        right_above: a response is right if its score is higher.
        max_response_length: the budget in tokens; null: every response ended by itself.
        micro_batch_size: responses in a local batch of bnpo.
        kl_responses: responses, drawn from the dump, that the two models read.
    """

    dump: Path
    tokenizer: Path
    out: Path
    right_above: float = 0.0
    max_response_length: int | None = None
    micro_batch_size: int = MICRO_BATCH_SIZE
    policy: Path | None = None
    reference: Path | None = None
    kl_responses: int = 64


@dataclass(frozen=True)
class _StepGroups:
    """Number of prompts of a step, and of those with equal scores, from which no variant learns."""

    step: int
    groups: int
    without_signal: int


@dataclass(frozen=True)
class Anatomy:
    """The result of `anatomy_of`."""

    responses: int
    tokens: int
    steps: list[_StepGroups]
    cells: Cells
    kl: KlReport | None
    warnings: list[str]


@dataclass
class _Seen:
    """Totals over the steps read so far.

    Attributes:
        weighed: one for each step that has a gradient.
        refused: variant whose estimator does not take these scores → why.
    """

    steps: list[_StepGroups] = field(default_factory=list)
    weighed: list[Weighed] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    scores: set[float] = field(default_factory=set)
    responses: int = 0
    tokens: int = 0
    over_budget: int = 0


def anatomy_of(settings: AnatomySettings) -> Anatomy:
    """Compute the weights of all variants on a dump, and the bias of the KL estimators for two models.

    Reads the dump once for the weights, and once more if the two models are given.

    Raises:
        AnatomyError: the dump or a model cannot be used, or there is nothing to compare.
    """
    policy, reference = settings.policy, settings.reference
    if (policy is None) != (reference is None):
        raise AnatomyError(
            f"--policy is {policy} and --reference is {reference}; valid are both, or neither. "
            f"Type: --policy <folder> --reference <folder>"
        )
    tokenizer, seen = load_tokenizer(settings.tokenizer), _Seen()
    for responses in read_steps(settings.dump):
        _see(seen, responses, tokenizer, settings)
    _refuse_nothing_to_compare(seen, settings)
    kl = None
    if policy is not None and reference is not None:
        drawn = _drawn_responses(settings.dump, seen.responses, settings.kl_responses)
        kl = measure_bias(policy, reference, tokenizer, drawn, settings.max_response_length)
    cells = cells_of(_joined(seen.weighed))
    return Anatomy(seen.responses, seen.tokens, seen.steps, cells, kl, _warnings(seen, kl))


def _drawn_responses(dump: Path, responses: int, wanted: int) -> Iterator[Response]:
    """Yield ``wanted`` responses of the dump in its order, drawn at random but the same ones each time."""
    order = torch.randperm(responses, generator=torch.Generator().manual_seed(0))
    chosen = set(order[:wanted].tolist())
    every = (response for step in read_steps(dump) for response in step)
    return (response for number, response in enumerate(every) if number in chosen)


def _see(
    seen: _Seen, responses: list[Response], tokenizer: PreTrainedTokenizerBase, settings: AnatomySettings
) -> None:
    text_tokens = [len(ids) for ids in token_ids(tokenizer, [response.output for response in responses])]
    lengths = [response_length(count, settings.max_response_length) for count in text_tokens]
    scores = [response.score for response in responses]
    _refuse_huge_scores(scores, settings)
    step = StepResponses.of(scores, lengths, [response.prompt_id for response in responses])
    seen.scores.update(scores)
    seen.responses += step.size
    seen.tokens += step.tokens
    seen.over_budget += sum(count > length for count, length in zip(text_tokens, lengths, strict=True))
    groups, without_signal = set(step.group.tolist()), set(step.group[step.has_no_signal()].tolist())
    seen.steps.append(_StepGroups(responses[0].step, len(groups), len(without_signal)))
    if without_signal != groups:
        right = torch.tensor([score > settings.right_above for score in scores])
        weights = _weights(step, settings.micro_batch_size, seen.refused)
        seen.weighed.append(Weighed(step.lengths, right, weights))


def _refuse_huge_scores(scores: Sequence[float], settings: AnatomySettings) -> None:
    for score in scores:
        if abs(score) > LARGEST_REWARD:
            raise AnatomyError(
                f"{settings.dump} has a score of {score:g}; valid are scores of at most {LARGEST_REWARD:g}, "
                f"as the estimators take them. Type: grpo-verl-ext anatomy <a dump with such scores>"
            )


def _weights(step: StepResponses, micro_batch_size: int, refused: dict[str, str]) -> dict[str, Tensor]:
    """Return the weights of each variant whose estimator takes the scores; enter the others."""
    weights = {}
    for name in COMPARED_ALGORITHMS:
        try:
            weights[name] = relative(token_weights(name, step, micro_batch_size), step.lengths)
        except TensorError as error:
            refused[name] = str(error)
    return weights


def _joined(parts: list[Weighed]) -> Weighed:
    return Weighed(
        torch.cat([part.lengths for part in parts]),
        torch.cat([part.right for part in parts]),
        {
            name: torch.cat([part.weights[name] for part in parts])
            for name in COMPARED_ALGORITHMS
            if all(name in part.weights for part in parts)
        },
    )


def _refuse_nothing_to_compare(seen: _Seen, settings: AnatomySettings) -> None:
    if not seen.responses:
        raise AnatomyError(f"{settings.dump} has no responses. {HOW_TO_DUMP}")
    lowest, highest = min(seen.scores), max(seen.scores)
    for kind, none in (
        ("right", highest <= settings.right_above),
        ("wrong", lowest > settings.right_above),
    ):
        if none:
            raise AnatomyError(
                f"none of {seen.responses} responses is {kind} with --right-above {settings.right_above:g}; "
                f"valid is a number that divides the scores {_named(sorted(seen.scores))}. "
                f"Type: --right-above <number>"
            )
    if not seen.weighed:
        groups = sum(step.groups for step in seen.steps)
        raise AnatomyError(
            f"in each of the {groups} groups of {settings.dump} all scores are equal: no variant has a "
            f"gradient there. Valid is a dump with right and wrong answers to the same prompt"
        )


def _named(scores: list[float]) -> str:
    if len(scores) <= _SCORES_NAMED:
        return ", ".join(f"{score:g}" for score in scores)
    return f"{scores[0]:g} … {scores[-1]:g}"


def _warnings(seen: _Seen, kl: KlReport | None) -> list[str]:
    words = []
    left_out = len(seen.steps) - len(seen.weighed)
    if left_out:
        words.append(f"{left_out} of {len(seen.steps)} steps have no gradient at all and are in no table.")
    words += [f"{name} is in no table: {why}." for name, why in seen.refused.items()]
    if seen.over_budget:
        words.append(
            f"Responses with more tokens than --max-response-length when their text is tokenised anew: "
            f"{seen.over_budget}; each counts as that many."
        )
    if kl is not None and kl.prompts_as_text:
        words.append(
            f"{kl.prompts_as_text} of {kl.responses} prompts could not be put back into the chat template: "
            f"the models read them without its special tokens, as they never did in training."
        )
    if kl is not None and kl.kl == 0:
        words.append("The policy is the reference: no estimator has anything to be wrong by.")
    return words
