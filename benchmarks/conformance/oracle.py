"""What the papers say: the gradient of each loss on the whole mini-batch, in float64 and closed form.

With ρ = exp(log π − log π_old), ε the clip range and w the weight of a token, the clipped losses have
∂/∂log π [−w·min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)·A)] = −w·ρ·A where ρA is the smaller term, else 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.conformance.batch import GROUP_SIZE, MAX_RESPONSE_LENGTH, Batch, Floats

KL_COEF = 0.04
"""β of DeepSeekMath, arXiv 2402.03300, §4.2."""


def clipped(batch: Batch, weight: Floats, clip_low: float, clip_high: float) -> Floats:
    """Return ∂L/∂log π of Σ −w·min(ρA, clip(ρ)·A) over tokens."""
    return -weight * _clipped_ratio(np.exp(batch.log_prob - batch.old_log_prob), batch, clip_low, clip_high)


def sequence_clipped(batch: Batch, clip_low: float, clip_high: float) -> Floats:
    """Return the gradient of GSPO, arXiv 2507.18071 eq. 5: (1/B) Σ_i −min(s_i A, clip(s_i)·A).

    s_i = exp((1/|o_i|) Σ_t log ρ) passes its gradient to every token alike.
    """
    length = np.maximum(batch.mask.sum(1, keepdims=True), 1)
    mean = ((batch.log_prob - batch.old_log_prob) * batch.mask).sum(1, keepdims=True) / length
    ratio = np.broadcast_to(np.exp(mean), batch.mask.shape)
    return -_clipped_ratio(ratio, batch, clip_low, clip_high) * per_response(batch)


def weight_clipped(batch: Batch, clip_low: float, clip_high: float) -> Floats:  # noqa: ARG001  # one signature
    """Return the gradient of CISPO, arXiv 2506.13585 eq. 4: (1/N) ΣΣ −sg(min(ρ, 1 + ε_high))·A·log π."""
    ratio = np.minimum(np.exp(batch.log_prob - batch.old_log_prob), 1 + clip_high)
    return -ratio * batch.advantages * over_tokens(batch)


def kl(batch: Batch) -> Floats:
    """Return the gradient of β (1/B) Σ_i (1/|o_i|) Σ_t k3, with ∂k3/∂log π = 1 − π_ref/π."""
    return KL_COEF * (1 - np.exp(batch.ref_log_prob - batch.log_prob)) * per_response(batch)


def per_response(batch: Batch) -> Floats:
    """Return 1/(B·|o_i|) on the tokens of response i: GRPO, arXiv 2402.03300 eq. 3."""
    return batch.mask / np.maximum(batch.mask.sum(1, keepdims=True), 1) / len(batch)


def over_tokens(batch: Batch) -> Floats:
    """Return 1/N, N the tokens of the mini-batch: DAPO, arXiv 2503.14476, as verl and TRL read it."""
    return batch.mask / batch.mask.sum()


def over_prompt_tokens(batch: Batch) -> Floats:
    """Return 1/(P·N_p), N_p the tokens of the group: DAPO, arXiv 2503.14476 eq. 8, to the letter."""
    groups = batch.mask.reshape(-1, GROUP_SIZE, batch.mask.shape[1])
    return (groups / groups.sum((1, 2), keepdims=True)).reshape(batch.mask.shape) / len(groups)


def over_constant(batch: Batch) -> Floats:
    """Return 1/(B·L): Dr. GRPO, arXiv 2503.20783 eq. 3, averaged over responses."""
    return batch.mask / (len(batch) * MAX_RESPONSE_LENGTH)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm, its clip range and its gradient by each reading of its paper.

    Attributes:
        clip_low: ε_low, ``clip_high``: ε_high; ρ is clipped to [1 − ε_low, 1 + ε_high].
        readings: name → gradient of (batch, ε_low, ε_high).
    """

    title: str
    clip_low: float
    clip_high: float
    readings: dict[str, Callable[[Batch, float, float], Floats]]

    def gradient(self, reading: str, batch: Batch) -> Floats:
        """Return ∂L/∂log π, (B, T), by one reading."""
        return self.readings[reading](batch, self.clip_low, self.clip_high)


def _token_level(weights: Callable[[Batch], Floats]) -> Callable[[Batch, float, float], Floats]:
    return lambda batch, low, high: clipped(batch, weights(batch), low, high)


ALGORITHMS = {
    "grpo": Algorithm("GRPO", 0.2, 0.2, {"paper": _token_level(per_response)}),
    "dapo": Algorithm(
        "DAPO",
        0.2,
        0.28,
        {"mini-batch": _token_level(over_tokens), "per prompt": _token_level(over_prompt_tokens)},
    ),
    "dr_grpo": Algorithm("Dr. GRPO", 0.2, 0.2, {"paper": _token_level(over_constant)}),
    "gspo": Algorithm("GSPO", 3e-4, 4e-4, {"paper": sequence_clipped}),
    "cispo": Algorithm("CISPO", 1.0, 0.5, {"paper": weight_clipped}),
}
"""Clip ranges are the papers', but CISPO's, which has none: 1 + 0.5, so that some ratios are clipped."""


def _clipped_ratio(ratio: Floats, batch: Batch, clip_low: float, clip_high: float) -> Floats:
    unclipped = ratio * batch.advantages
    bounded = np.clip(ratio, 1 - clip_low, 1 + clip_high) * batch.advantages
    return np.where(unclipped <= bounded, unclipped, 0.0)
