"""GVPO as distillation: a student is regressed on a teacher by the log-probs of whole responses.

Zhang et al., GVPO++, arXiv 2609.21432, of which no text was at hand: the formulas are derived from GVPO,
arXiv 2504.19599. Reverse-KL distillation is KL-constrained reward maximisation with the reward
β (log π_T − log π'), where the anchor π' cancels. With f_i > 0 a fixed weight of response i,

    u_i = f_i (log π_θ(y_i) − log π_T(y_i)),      L = 1/(k−1) Σ_i ½ (u_i − ū)²,      f_i = |y_i|^(−α),

which is GVPO's loss (`gvpo.squared_error`) with the teacher π_T as anchor, no reward, β = 1, and log-probs
weighted by f. Summed over a distribution with full support it is 0 if and only if u is one constant c, so
that log π_θ = log π_T + c |y|^α; both are normalised, hence c = 0 and π_θ = π_T. Where only a part S of all
responses is ever sampled, π_θ = π_T e^{c |y|^α} on S with any c. With rewards R the minimiser is
π_T e^{(R/β + c) |y|^α}, normalised by c; for α = 0 that is π_T e^{R/β}.

The loss takes one number a response from the teacher, so the teacher needs neither the student's vocabulary
nor its tokenizer. A response is then a text: where several sequences of the student's tokens are one text,
only one of them may count, for else π_θ(text) were π_T(text) times their number.

Shapes: (B,) one number per response, in any order; log-probs in nats. Nothing has a gradient here.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.groups import group_deviation
from grpo_verl_ext.algorithms.gvpo import length_weight


class Fit(NamedTuple):
    """How a student compares with its teacher on some responses; means over them."""

    kl: float
    """log π_θ(y) − log π_T(y), nats: k1's estimate of KL(π_θ ‖ π_T) where the student wrote them."""
    log_prob: float
    """log π_θ(y), nats."""
    teacher_log_prob: float
    """log π_T(y), nats."""
    residual: float
    """√ of the mean of (u_i − ū)²: 0 where student and teacher agree up to a constant of the prompt."""
    agreement: float
    """Correlation of log π_θ and log π_T, both from the mean of their prompt; 0 where one does not vary."""


def residuals(log_ratio: Tensor, lengths: Tensor, group: Tensor, member: Tensor, alpha: float) -> Tensor:
    """u_i − ū, 0 for rows that are no response: (B,) → (B,).

    Args:
        log_ratio: log π_θ(y_i) − log π_T(y_i).
        lengths: |y_i| in the student's tokens.
        group: from `groups.dense_group_ids`.
        member: False for padding rows and for responses without tokens.
        alpha: α.
    """
    return group_deviation(length_weight(lengths, alpha) * log_ratio, group, member)


def fit(
    log_prob: Tensor,
    teacher_log_prob: Tensor,
    residual: Tensor,
    deviations: tuple[Tensor, Tensor],
    chosen: Tensor,
) -> Fit:
    """Compare student and teacher on the chosen responses, at least one.

    Args:
        log_prob: log π_θ(y_i).
        teacher_log_prob: log π_T(y_i).
        residual: from `residuals`.
        deviations: `groups.group_deviation` of both log-probs.
        chosen: which responses count.
    """
    own, others = (each[chosen] for each in deviations)
    spread = (own.square().sum() * others.square().sum()).sqrt()
    agreement = torch.where(spread > 0, (own * others).sum() / spread, 0)
    return Fit(
        kl=float((log_prob - teacher_log_prob)[chosen].mean()),
        log_prob=float(log_prob[chosen].mean()),
        teacher_log_prob=float(teacher_log_prob[chosen].mean()),
        residual=float(residual[chosen].square().mean().sqrt()),
        agreement=float(agreement),
    )
