"""GVPO's loss as the three terms of its paper, and how well implicit rewards fit rewards.

Zhang et al., arXiv 2504.19599. With (co)variances over the k responses of a prompt, k − 1 in the denominator,
the sum

    −β Cov(R, log π) − β² Cov(log π, log π′) + ½ β² Var(log π)

of advantage, trust region and entropy-like term has the gradient of `gvpo.squared_error`, summed over the
prompt; its value is smaller by ½ Var(R) + β Cov(R, log π′) + ½ β² Var(log π′). Response i adds a product of
two deviations from means of its prompt,

    r_i = R_i − R̄,      q_i = log π′(y_i) − mean,      p_i = log π(y_i) − mean,

so a sum over micro-batches and ranks is exact. The implicit reward is f_i = β (p_i − q_i), and
d_i = f_i − r_i is `gvpo.residual`: p needs no mean over the group besides the drift that is in d.

Shapes: (B,) one number per response, in any order; log-probs in nats, R, f and d in reward units. Gradient
flows through ``residual`` alone; Σ r_i = Σ q_i = Σ p_i = 0, so that none is missing for the means.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from grpo_verl_ext.algorithms.gvpo import per_degree_of_freedom


class Moments(NamedTuple):
    """What a response adds to (co)variances of its prompt, with k − 1: (B,) each."""

    cov_reward_log_prob: Tensor
    """r_i p_i / (k − 1), of Cov(R, log π)."""
    cov_log_prob_anchor: Tensor
    """p_i q_i / (k − 1), of Cov(log π, log π′)."""
    var_log_prob: Tensor
    """p_i² / (k − 1), of Var(log π)."""
    var_reward: Tensor
    """r_i² / (k − 1), of Var(R)."""
    var_implicit: Tensor
    """f_i² / (k − 1), of Var(f)."""
    cov_reward_implicit: Tensor
    """r_i f_i / (k − 1), of Cov(R, f)."""

    @classmethod
    def of(
        cls, residual: Tensor, reward: Tensor, anchor: Tensor, group_size: Tensor | int, beta: float
    ) -> "Moments":
        """Compute all products of deviations; those of a prompt with k ≤ 1 are 0.

        Args:
            residual: d_i, from `gvpo.residual`.
            reward: r_i, from `advantages.centred`.
            anchor: q_i, `groups.group_deviation` of log π′(y_i).
            group_size: k of each response's prompt.
            beta: β.
        """
        implicit = residual + reward
        log_prob = implicit / beta + anchor
        products = (
            reward * log_prob,
            log_prob * anchor,
            log_prob.square(),
            reward.square(),
            implicit.square(),
            reward * implicit,
        )
        return cls(*(per_degree_of_freedom(product, group_size) for product in products))


ABLATED_LOSSES: dict[str, Callable[[Moments, float], Tensor]] = {
    "without_variance": lambda m, beta: -beta * m.cov_reward_log_prob - beta**2 * m.cov_log_prob_anchor,
    "without_covariance": lambda m, beta: -beta * m.cov_reward_log_prob + 0.5 * beta**2 * m.var_log_prob,
}
"""The paper's ablation: (moments, β) → loss (B,) with one of its three terms dropped.

Neither has the minimiser of GVPO: without the variance there is none, since the loss is linear in log π;
without the covariance it is e^{R/β}, whatever the anchor.
"""


_ROUNDING = 1e-10
"""Var(R)/Var(f) of fp32's rounding is about 2⁻⁴⁸; of rewards in use it is above 1e-6."""


def implicit_reward_fit(
    var_reward: float, var_implicit: float, cov_reward_implicit: float
) -> tuple[float, float]:
    """Return slope and R² of the regression of f on R; at the optimum π* both are 1.

    One slope for all prompts, deviations from the means of each: slope = Cov(R, f)/Var(R),
    R² = Cov(R, f)²/(Var(R) Var(f)) with means of `Moments` over prompts. 0 where rewards or implicit rewards
    do not vary: beyond `_ROUNDING`, for R is recovered from fp32 targets that have f in them.
    """
    slope = cov_reward_implicit / var_reward if var_reward > _ROUNDING * var_implicit else 0.0
    explained = slope * cov_reward_implicit / var_implicit if var_implicit > 0 else 0.0
    return slope, explained
