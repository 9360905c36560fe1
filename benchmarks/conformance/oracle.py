"""What the papers say: the gradient of each loss on the whole mini-batch, in float64 and closed form.

With ρ = exp(log π − log π_old), ε the clip range and w the weight of a token, the clipped losses have
∂/∂log π [−w·min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)·A)] = −w·ρ·A where ρA is the smaller term, else 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.conformance.batch import GROUP_SIZE, MAX_RESPONSE_LENGTH, Batch, Floats

Bools = NDArray[np.bool_]

KL_COEF = 0.04
"""β of DeepSeekMath, arXiv 2402.03300, §4.2."""
VESPO = {"positive": (2.0, 3.0), "negative": (3.0, 2.0)}
"""Sign of the advantage → k and λ of the kernel, by the authors' script."""
CLIP_COV = (1.0, 5.0)
"""ω_low and ω_high of the authors' scripts."""
STD_OF_EQUALS = 1e-12
"""Largest standard deviation that rounding gives equal rewards."""
KL_COV_SHARE = 0.02
"""Share of tokens with a KL penalty of coefficient 1. Ours: the scripts' 0.002 of 224 is half a token."""


def clipped(batch: Batch, weight: Floats, clip_low: float, clip_high: float) -> Floats:
    """Return ∂L/∂log π of Σ −w·min(ρA, clip(ρ)·A) over tokens."""
    return -weight * _clipped_ratio(np.exp(batch.log_prob - batch.old_log_prob), batch, clip_low, clip_high)


def sequence_clipped(batch: Batch, clip_low: float, clip_high: float) -> Floats:
    """Return the gradient of GSPO, arXiv 2507.18071 eq. 5: (1/B) Σ_i −min(s_i A, clip(s_i)·A).

    s_i = exp((1/|o_i|) Σ_t log ρ) passes its gradient to every token alike.
    """
    return _sequence_clipped(batch, per_response(batch), clip_low, clip_high)


def sequence_summed(batch: Batch, clip_low: float, clip_high: float) -> Floats:
    """Return the gradient of LUSPO, arXiv 2602.05261: (1/B) Σ_i −|o_i|·min(s_i A, clip(s_i)·A)."""
    return _sequence_clipped(batch, batch.mask / len(batch), clip_low, clip_high)


def weight_clipped(batch: Batch, clip_low: float, clip_high: float) -> Floats:  # noqa: ARG001  # one signature
    """Return the gradient of CISPO, arXiv 2506.13585 eq. 4: (1/N) ΣΣ −sg(min(ρ, 1 + ε_high))·A·log π."""
    ratio = np.minimum(np.exp(batch.log_prob - batch.old_log_prob), 1 + clip_high)
    return -ratio * batch.advantages * over_tokens(batch)


def softly_weighted(batch: Batch, clip_low: float, clip_high: float) -> Floats:  # noqa: ARG001
    """Return the gradient of VESPO, arXiv 2602.10693 §3.4: (1/N) ΣΣ −sg(φ(W_i))·A·log π.

    W_i = exp(Σ_t log ρ), φ(W) = W^k e^{λ(1 − W)}; k and λ of `VESPO` for A ≥ 0 and for A < 0.
    """
    ratio = np.exp(_log_ratio(batch).sum(1, keepdims=True))
    phi = {sign: ratio**k * np.exp(decay * (1 - ratio)) for sign, (k, decay) in VESPO.items()}
    weight = np.where(batch.advantages < 0, phi["negative"], phi["positive"])
    return -weight * batch.advantages * over_tokens(batch)


def masked_by_variation(batch: Batch, clip_low: float, clip_high: float) -> Floats:
    """Return the gradient of DPPO, arXiv 2602.04879 eq. 13: (1/(B·L)) ΣΣ −M·sg(ρ)·A·log π.

    M is 0 where π − π_old has gone further than δ in the direction of A.
    """
    moved = np.exp(batch.log_prob) - np.exp(batch.old_log_prob)
    return _masked_ratio(batch, moved > clip_high, moved < -clip_low)


def masked_by_kl(batch: Batch, clip_low: float, clip_high: float) -> Floats:
    """Return the gradient of DPPO, arXiv 2602.04879 eq. 14: the same with D > δ, π moved in A's direction.

    D = π_old log(π_old/π) + (1 − π_old) log((1 − π_old)/(1 − π)).
    """
    new, old = np.exp(batch.log_prob), np.exp(batch.old_log_prob)
    with np.errstate(divide="ignore", invalid="ignore"):  # π = 1 on padding
        distance = old * np.log(old / new) + (1 - old) * np.log((1 - old) / (1 - new))
    return _masked_ratio(batch, (distance > clip_high) & (new > old), (distance > clip_low) & (new < old))


def without_high_covariance(batch: Batch, clip_low: float, clip_high: float) -> Floats:
    """Return the gradient of Clip-Cov, arXiv 2505.22617 §4.2, with the PPO clip of the authors' code.

    Tokens inside the clip range with ω_low < cov < ω_high (`CLIP_COV`) get none. The paper draws a share of
    them; here the share is all, so that nothing is drawn.
    """
    inside = _clipped_ratio(np.exp(_log_ratio(batch)), batch, clip_low, clip_high)
    covariance = _covariance(batch)
    dropped = (covariance > CLIP_COV[0]) & (covariance < CLIP_COV[1])
    return -np.where(dropped, 0, inside) * over_tokens(batch)


def with_kl_at_high_covariance(batch: Batch, clip_low: float, clip_high: float) -> Floats:  # noqa: ARG001
    """Return the gradient of KL-Cov, arXiv 2505.22617 §4.2: (1/N) ΣΣ −ρA, + |log ρ| on the tokens of largest
    cov, a share `KL_COV_SHARE` of all.
    """
    log_ratio, covariance = _log_ratio(batch), _covariance(batch)
    least = np.sort(covariance[batch.mask > 0])[-max(1, int(KL_COV_SHARE * batch.mask.sum()))]
    penalty = np.where((covariance >= least) & (batch.mask > 0), np.sign(log_ratio), 0)
    return (penalty - np.exp(log_ratio) * batch.advantages) * over_tokens(batch)


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
    "luspo": Algorithm("LUSPO", 2e-3, 2.5e-3, {"paper": sequence_summed}),
    "cispo": Algorithm("CISPO", 1.0, 0.5, {"paper": weight_clipped}),
    "vespo": Algorithm("VESPO", 0.2, 0.2, {"paper": softly_weighted}),
    "dppo": Algorithm("DPPO by total variation", 0.15, 0.15, {"paper": masked_by_variation}),
    "dppo_kl": Algorithm("DPPO by KL", 0.05, 0.05, {"paper": masked_by_kl}),
    "clip_cov": Algorithm("Clip-Cov", 1.0, 1.0, {"paper": without_high_covariance}),
    "kl_cov": Algorithm("KL-Cov", 0.2, 0.2, {"paper": with_kl_at_high_covariance}),
}
"""Clip ranges are the papers', but CISPO's, which has none: 1 + 0.5, so that some ratios are clipped.

DPPO's is its divergence; VESPO and KL-Cov read none.
"""


def over_mean(rewards: Floats) -> Floats:
    """Return MaxRL's advantages, arXiv 2602.02710: (r − mean r)/mean r in each group; 0 if that mean is 0."""
    groups = rewards[:, 0].reshape(-1, GROUP_SIZE)
    mean = groups.mean(1, keepdims=True)
    advantages: Floats = np.divide(groups - mean, mean, out=np.zeros_like(groups), where=mean > 0)
    return advantages.ravel()


def decoupled(rewards: Floats) -> Floats:
    """Return GDPO's advantages, arXiv 2601.05242: each reward normalised in its group (n − 1; 0 without
    spread), their sum divided by its standard deviation over all responses.
    """
    groups = rewards.reshape(-1, GROUP_SIZE, rewards.shape[1])
    centred, std = groups - groups.mean(1, keepdims=True), groups.std(1, ddof=1, keepdims=True)
    total = np.divide(centred, std, out=np.zeros_like(groups), where=std > STD_OF_EQUALS).sum(2).ravel()
    advantages: Floats = total / total.std(ddof=1)
    return advantages


ESTIMATORS = {"maxrl": ("MaxRL", over_mean), "gdpo": ("GDPO", decoupled)}
"""Name → title, and function of the rewards, (B, M), without the ε that code adds to divisors."""


def _log_ratio(batch: Batch) -> Floats:
    return (batch.log_prob - batch.old_log_prob) * batch.mask


def _sequence_clipped(batch: Batch, weight: Floats, clip_low: float, clip_high: float) -> Floats:
    length = np.maximum(batch.mask.sum(1, keepdims=True), 1)
    ratio = np.exp(_log_ratio(batch).sum(1, keepdims=True) / length)
    return -_clipped_ratio(np.broadcast_to(ratio, weight.shape), batch, clip_low, clip_high) * weight


def _masked_ratio(batch: Batch, too_high: Bools, too_low: Bools) -> Floats:
    too_far = np.where(batch.advantages > 0, too_high, too_low)
    return -np.where(too_far, 0, np.exp(_log_ratio(batch))) * batch.advantages * over_constant(batch)


def _covariance(batch: Batch) -> Floats:
    """Return (A − mean A)(log π − mean log π), means over the tokens of the mini-batch."""
    counts = batch.mask > 0
    centred = [values - values[counts].mean() for values in (batch.advantages, batch.log_prob)]
    product: Floats = centred[0] * centred[1]
    return product


def _clipped_ratio(ratio: Floats, batch: Batch, clip_low: float, clip_high: float) -> Floats:
    unclipped = ratio * batch.advantages
    bounded = np.clip(ratio, 1 - clip_low, 1 + clip_high) * batch.advantages
    return np.where(unclipped <= bounded, unclipped, 0.0)
