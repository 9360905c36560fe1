"""Value and gradient bias of the KL estimators between two models, in the contexts of a dump's responses.

At each position the mean over the next token is taken over the policy's whole vocabulary
(`kl.expected_with_gradient`), so the sampled tokens matter only as contexts. The contexts are tokenised
again: a prompt through the chat template where that gives its text back exactly, else as plain text, which is
counted; responses as plain text. They are the policy's own contexts if the dump is from its step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from grpo_verl_ext.algorithms.kl import KL_ESTIMATORS, Divergence, exact_with_gradient, expected_with_gradient
from grpo_verl_ext.anatomy.dump import AnatomyError, ids_of_prompt, response_length, token_ids
from grpo_verl_ext.runs.dumps import Response

POSITIONS = 256
"""Positions drawn from a longer response; they then count for all of its positions."""

LOGITS_AT_ONCE = 2**22
"""Positions times vocabulary in one evaluation of an estimator, which holds about ten such tensors."""

_NO_GRADIENT = 1e-6
"""Below this share of the true gradient's size, an estimator's gradient is rounding and has no direction."""


@dataclass(frozen=True)
class _Bias:
    """An estimator compared with the KL; means over the tokens.

    Attributes:
        value: E[k], nats.
        value_bias: E[k] − KL, nats.
        gradient_error: ‖E[∇k] − ∇KL‖ / ‖∇KL‖, norms over all positions and logits; None where the KL has no
            gradient.
        cosine: between E[∇k] and ∇KL over all positions and logits; None where one has no direction.
    """

    value: float
    value_bias: float
    gradient_error: float | None
    cosine: float | None


@dataclass(frozen=True)
class KlReport:
    """The measured biases, and the number of responses and positions measured.

    Attributes:
        prompts_as_text: responses whose prompt could not be put back into the chat template.
        kl: KL(policy ‖ reference), nats per token.
    """

    responses: int
    positions: int
    prompts_as_text: int
    kl: float
    estimators: dict[str, _Bias]


@dataclass
class _Sums:
    """Sums over positions: of E[k] − KL, ‖E[∇k] − ∇KL‖², ‖E[∇k]‖² and ⟨E[∇k], ∇KL⟩."""

    value_bias: float = 0.0
    difference: float = 0.0
    size: float = 0.0
    inner: float = 0.0

    def add(self, estimate: Divergence, truth: Divergence, weight: float) -> None:
        self.value_bias += weight * float((estimate.value - truth.value).sum())
        self.difference += weight * float((estimate.gradient - truth.gradient).square().sum())
        self.size += weight * float(estimate.gradient.square().sum())
        self.inner += weight * float((estimate.gradient * truth.gradient).sum())

    def bias(self, kl: float, gradient_size: float, tokens: float) -> _Bias:
        """Return the means, given the sums of the KL and of ‖∇KL‖² over the same tokens."""
        has_gradient = kl > 0  # else the models are equal, and any gradient is rounding
        has_direction = has_gradient and self.size > _NO_GRADIENT**2 * gradient_size
        return _Bias(
            value=(kl + self.value_bias) / tokens,
            value_bias=self.value_bias / tokens,
            gradient_error=(self.difference / gradient_size) ** 0.5 if has_gradient else None,
            cosine=self.inner / (self.size * gradient_size) ** 0.5 if has_direction else None,
        )


@dataclass
class Tally:
    """Sums over positions, each counted ``weight`` times."""

    positions: int = 0
    tokens: float = 0.0
    kl: float = 0.0
    gradient_size: float = 0.0
    estimators: dict[str, _Sums] = field(default_factory=lambda: {name: _Sums() for name in KL_ESTIMATORS})

    def add(self, logits: Tensor, ref_logits: Tensor, weight: float = 1.0) -> None:
        """Add N positions, given the logits of both models, (N, V) each."""
        at_once = max(1, LOGITS_AT_ONCE // logits.shape[-1])
        for some, ref_some in zip(
            torch.split(logits, at_once), torch.split(ref_logits, at_once), strict=True
        ):
            # In fp64: an estimator's bias can be far smaller than fp32 rounding.
            wide, ref_wide = some.double(), ref_some.double()
            truth = exact_with_gradient(wide, ref_wide)
            self.positions += len(some)
            self.tokens += weight * len(some)
            self.kl += weight * float(truth.value.sum())
            self.gradient_size += weight * float(truth.gradient.square().sum())
            for name, estimator in KL_ESTIMATORS.items():
                self.estimators[name].add(expected_with_gradient(estimator, wide, ref_wide), truth, weight)

    def biases(self) -> dict[str, _Bias]:
        """Return each estimator's means over the tokens."""
        return {
            name: sums.bias(self.kl, self.gradient_size, self.tokens)
            for name, sums in self.estimators.items()
        }


def measure_bias(
    policy: Path,
    reference: Path,
    tokenizer: PreTrainedTokenizerBase,
    responses: Iterable[Response],
    budget: int | None,
) -> KlReport:
    """Measure the bias of each estimator between two models on the given responses.

    Both models read the responses one at a time, without padding.

    Raises:
        AnatomyError: a folder has no model, or the two have different vocabularies.
    """
    models = [_load(folder, option) for folder, option in ((policy, "--policy"), (reference, "--reference"))]
    tally, as_text, count = Tally(), 0, 0
    for response in responses:
        prompt = ids_of_prompt(tokenizer, response.prompt)
        if prompt is None:
            as_text += 1
            (prompt,) = token_ids(tokenizer, [response.prompt])
        (written,) = token_ids(tokenizer, [response.output])
        length = response_length(len(written), budget)
        positions = _positions(length, seed=count)
        logits, ref_logits = (
            _logits(model, [*prompt, *written], len(prompt) - 1 + positions) for model in models
        )
        if logits.shape != ref_logits.shape:
            raise AnatomyError(
                f"{policy} has logits for {logits.shape[-1]} tokens and {reference} for "
                f"{ref_logits.shape[-1]}; valid are two models with one vocabulary, such as a policy and the "
                f"model before its training. Type: --reference <folder>"
            )
        tally.add(logits, ref_logits, weight=length / len(positions))
        count += 1
    return KlReport(count, tally.positions, as_text, tally.kl / tally.tokens, tally.biases())


def _positions(length: int, seed: int) -> Tensor:
    drawn = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    return drawn[:POSITIONS].sort().values


def _load(folder: Path, option: str) -> PreTrainedModel:
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
    except (OSError, ValueError) as error:
        raise AnatomyError(
            f"{folder} has no model that transformers can read. Valid is a Hugging Face folder, such as what "
            f"verl.model_merger makes of a checkpoint. Type: {option} <folder>"
        ) from error
    return model.to(device).eval()


@torch.no_grad()
def _logits(model: PreTrainedModel, ids: list[int], positions: Tensor) -> Tensor:
    """Return the logits at the chosen positions, (N, V)."""
    tokens = torch.tensor([ids], device=model.device)
    logits: Tensor = model(input_ids=tokens, logits_to_keep=positions.to(model.device)).logits[0]
    return logits
