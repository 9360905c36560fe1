"""The papers' formulas in slow Python: floats and loops, one line of the paper at a time.

Nothing here shares code or structure with the package. Rows are lists, masks are lists of 0 and 1, and a
loss's gradient is with respect to the log-probability of each token.
"""

import math
from collections.abc import Hashable, Sequence
from statistics import mean  # rounded once: equal values have no deviation

Row = Sequence[float]


def sample_std(values: Row) -> float:
    """n − 1 in the denominator; 0 for one value."""
    if len(values) == 1:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def group_of(i: int, rewards: Row, ids: Sequence[Hashable]) -> list[float]:
    return [reward for reward, other in zip(rewards, ids, strict=True) if other == ids[i]]


def grpo_advantages(rewards: Row, ids: Sequence[Hashable], eps: float) -> list[float]:
    """DeepSeekMath §4.1.2: (r_i − mean(r)) / std(r); the paper has eps = 0."""
    result = []
    for i, reward in enumerate(rewards):
        group = group_of(i, rewards, ids)
        deviation = reward - mean(group)
        result.append(0.0 if deviation == 0 else deviation / (sample_std(group) + eps))
    return result


def dr_grpo_advantages(rewards: Row, ids: Sequence[Hashable]) -> list[float]:
    """Dr. GRPO §3.1: r_i − mean(r)."""
    return [reward - mean(group_of(i, rewards, ids)) for i, reward in enumerate(rewards)]


def rloo_advantages(rewards: Row, ids: Sequence[Hashable]) -> list[float]:
    """RLOO: r_i minus the mean of the other rewards of its prompt; 0 for one response."""
    result = []
    for i, reward in enumerate(rewards):
        others = [r for j, r in enumerate(rewards) if ids[j] == ids[i] and j != i]
        result.append(reward - mean(others) if others else 0.0)
    return result


def maxrl_advantages(rewards: Row, ids: Sequence[Hashable], eps: float) -> list[float]:
    """MaxRL: (r_i − mean(r)) / mean(r) in the group; the paper has eps = 0."""
    groups = [group_of(i, rewards, ids) for i in range(len(rewards))]
    return [(reward - mean(own)) / (mean(own) + eps) for reward, own in zip(rewards, groups, strict=True)]


def gdpo_advantages(rewards: Sequence[Row], weights: Row, ids: Sequence[Hashable], eps: float) -> list[float]:
    """GDPO: each reward as in GRPO, their weighted sum over its standard deviation of all responses."""
    apart = [grpo_advantages(each, ids, eps) for each in zip(*rewards, strict=True)]
    sums = [sum(w * a for w, a in zip(weights, own, strict=True)) for own in zip(*apart, strict=True)]
    return grpo_advantages(sums, ["all"] * len(sums), eps)


def batch_scaled_advantages(rewards: Row, ids: Sequence[Hashable], eps: float) -> list[float]:
    """Group mean, standard deviation of all rewards."""
    return [a / (sample_std(rewards) + eps) for a in dr_grpo_advantages(rewards, ids)]


def token_loss(
    log_ratio: float, advantage: float, low: float, high: float, c: float | None
) -> tuple[float, float]:
    """(ℓ, dℓ/d log_prob) of −min[ρA, clip(ρ)A], with dual clip where c is given."""
    ratio = math.exp(log_ratio)
    clipped = min(max(ratio, 1 - low), 1 + high)
    if ratio * advantage <= clipped * advantage:
        loss, gradient = -ratio * advantage, -ratio * advantage
    else:
        loss, gradient = -clipped * advantage, 0.0
    if c is not None and advantage < 0 and -c * advantage < loss:
        loss, gradient = -c * advantage, 0.0
    return loss, gradient


def grpo_loss(losses: Sequence[Row], masks: Sequence[Sequence[int]]) -> float:
    """DeepSeekMath eq. 3: 1/G Σ_i 1/|o_i| Σ_t ℓ; an empty response contributes 0."""
    total = 0.0
    for row, mask in zip(losses, masks, strict=True):
        length = sum(mask)
        if length:
            total += math.fsum(value for value, m in zip(row, mask, strict=True) if m) / length
    return total / len(losses)


def dapo_loss(losses: Sequence[Row], masks: Sequence[Sequence[int]]) -> float:
    """DAPO eq. 8 with one set of responses: 1/Σ|o_i| Σ_i Σ_t ℓ."""
    return token_sum(losses, masks) / sum(map(sum, masks))


def dapo_per_prompt_loss(
    losses: Sequence[Row], masks: Sequence[Sequence[int]], ids: Sequence[Hashable]
) -> float:
    """DAPO eq. 8 with its expectation over prompts: the mean of `dapo_loss` over the prompts' groups."""
    per_prompt = []
    for prompt in dict.fromkeys(ids):
        own = [i for i, other in enumerate(ids) if other == prompt]
        per_prompt.append(dapo_loss([losses[i] for i in own], [masks[i] for i in own]))
    return mean(per_prompt)


def dr_grpo_loss(losses: Sequence[Row], masks: Sequence[Sequence[int]], budget: int) -> float:
    """Dr. GRPO §3.2: 1/G Σ_i 1/L Σ_t ℓ with a constant L."""
    return token_sum(losses, masks) / (len(losses) * budget)


def gmpo_response_loss(log_ratios: Row, advantage: float, epsilon: float) -> float:
    """GMPO: −A (Π_t min[ρ^s, clip(ρ^s, e^−ε, e^ε)]^s)^{1/|o|} with s = sgn A."""
    sign = 1 if advantage > 0 else -1
    product = 1.0
    for log_ratio in log_ratios:
        power = math.exp(sign * log_ratio)
        clipped = min(max(power, math.exp(-epsilon)), math.exp(epsilon))
        product *= min(power, clipped) ** sign
    return -advantage * product ** (1 / len(log_ratios))


def token_sum(losses: Sequence[Row], masks: Sequence[Sequence[int]]) -> float:
    return math.fsum(
        value
        for row, mask in zip(losses, masks, strict=True)
        for value, m in zip(row, mask, strict=True)
        if m
    )


def gvpo_prompt_loss(rewards: Row, log_ratios: Row, beta: float) -> float:
    """GVPO, mean-squared-error form: 1/(k−1) Σ ½ [(β s_i − mean β s) − (R_i − mean R)]²."""
    k = len(rewards)
    if k == 1:
        return 0.0
    implicit = [beta * s for s in log_ratios]
    return math.fsum(
        0.5 * ((s - mean(implicit)) - (reward - mean(rewards))) ** 2
        for s, reward in zip(implicit, rewards, strict=True)
    ) / (k - 1)


def gvpo_prompt_gradient(rewards: Row, log_ratios: Row, beta: float) -> list[float]:
    """GVPO, weight form: −β w_i / (k−1) for the log-probability of response i."""
    k = len(rewards)
    if k == 1:
        return [0.0]
    weights = [
        (reward - mean(rewards)) - beta * (s - mean(log_ratios))
        for s, reward in zip(log_ratios, rewards, strict=True)
    ]
    return [-beta * w / (k - 1) for w in weights]


def process_advantages(
    steps: Sequence[Sequence[tuple[float, int]]], lengths: Sequence[int], ids: Sequence[Hashable], eps: float
) -> list[list[float]]:
    """DeepSeekMath §4.1.3; ``steps[i]`` has (reward, end token) of each step of response i."""
    table = []
    for i, length in enumerate(lengths):
        pool = [r for own, other in zip(steps, ids, strict=True) if other == ids[i] for r, _ in own]
        normalised = [((r - mean(pool)) / (sample_std(pool) + eps), end) for r, end in steps[i]]
        table.append([math.fsum(r for r, end in normalised if end >= t) for t in range(length)])
    return table
