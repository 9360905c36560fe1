"""Per-token estimators of KL(π_θ ‖ π_ref) from sampled tokens, in nats; reduce with `aggregation`.

With p = log_prob, q = ref_log_prob and a token drawn from π_θ; (B, T) → (B, T), fp32 or better, 0 under the
mask whatever stands there. Gradient flows through ``log_prob``. Log-ratios are limited to ±20; beyond it
there is no gradient. An unbiased value does not make an unbiased gradient: in a loss, the gradient of `k2`
is that of the KL on-policy, while those of `k1` and `k3` are not, which is what `with_k2_gradient` is for.
J. Schulman, "Approximating KL Divergence", 2020.

**Bias.** At a position the policy π = softmax(logits) gives every token v a probability, so the mean of an
estimator over x ~ π, and the mean of its gradient in a loss, where the drawn token is held fixed, are finite
sums, free of sampling noise:

    E[k] = Σ_v π(v) k(v),      E[∇k] = Σ_v π(v) ∇k(v),      ∇ with respect to the logits.

The second is not the gradient of the first, which would also move π(v). E[∇k1] = 0: as a loss, k1 has no
effect on average. E[∇k2] = ∇KL(π ‖ π_ref), as wanted. E[∇k3] = ∇KL(π_ref ‖ π) = π − π_ref, the gradient of
the KL in the other direction. All of this holds up to the ±20.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_verl_ext.algorithms.ragged import BLOCK
from grpo_verl_ext.algorithms.surrogate import clipped_surrogate, token_log_ratio
from grpo_verl_ext.algorithms.validation import check_same_shape


def k1(log_prob: Tensor, ref_log_prob: Tensor, response_mask: Tensor) -> Tensor:
    """p − q: unbiased, high variance, can be negative. Gradient ∇p, which has mean 0: no pull to π_ref."""
    return token_log_ratio(log_prob, ref_log_prob, response_mask)


def k2(log_prob: Tensor, ref_log_prob: Tensor, response_mask: Tensor) -> Tensor:
    """½ (p − q)²: biased, low variance, ≥ 0. Gradient (p − q) ∇p, on-policy the gradient of the KL."""
    return 0.5 * token_log_ratio(log_prob, ref_log_prob, response_mask).square()


def k3(log_prob: Tensor, ref_log_prob: Tensor, response_mask: Tensor) -> Tensor:
    """e^{q−p} − (q − p) − 1: unbiased, low variance, ≥ 0. Gradient (1 − e^{q−p}) ∇p, that of KL(π_ref ‖ π_θ).

    GRPO, arXiv 2402.03300 eq. 4. Differs from verl's ``low_var_kl``, which cuts the value (and with it the
    gradient) at 10.
    """
    log_ratio = -token_log_ratio(log_prob, ref_log_prob, response_mask)
    return log_ratio.expm1() - log_ratio


_KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


@torch.no_grad()
def token_means(log_prob: Tensor, ref_log_prob: Tensor, response_mask: Tensor) -> dict[str, Tensor]:
    """1/N Σ_t m k_t by each of `_KL_ESTIMATORS`, N = Σ_t m: (…) → () each, in nats, fp64; 0 without a token.

    For metrics of a whole batch. The tokens may be padded or laid end to end (`ragged`): any shape will do.
    Takes the memory of `ragged.BLOCK` tokens beside its arguments, if these are contiguous.
    """
    check_same_shape(log_prob=log_prob, ref_log_prob=ref_log_prob, response_mask=response_mask)
    sums = torch.zeros(len(_KL_ESTIMATORS), dtype=torch.float64, device=log_prob.device)
    tokens = torch.zeros((), dtype=torch.int64, device=log_prob.device)
    columns = (torch.split(each.flatten(), BLOCK) for each in (log_prob, ref_log_prob, response_mask))
    for block in zip(*columns, strict=True):
        sums += torch.stack(
            [estimate(*block).sum(dtype=torch.float64) for estimate in _KL_ESTIMATORS.values()]
        )
        tokens += block[-1].bool().sum()
    return dict(zip(_KL_ESTIMATORS, sums / tokens.clamp(min=1), strict=True))


def with_k2_gradient(
    estimate: Tensor, log_prob: Tensor, ref_log_prob: Tensor, response_mask: Tensor
) -> Tensor:
    """The value of ``estimate`` with the gradient of `k2` (straight-through); verl's ``k1+`` and ``k3+``."""
    check_same_shape(log_prob=log_prob, estimate=estimate)
    surrogate = k2(log_prob, ref_log_prob, response_mask)
    return estimate.detach() + (surrogate - surrogate.detach())


def surrogate_with_unbiased_kl(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    ref_log_prob: Tensor,
    *,
    kl_coef: float,
    **clip: float,
) -> Tensor:
    """ℓ = `surrogate.clipped_surrogate` with the range ``clip``, + β ρ k3, ρ = π/π_old: (B, T) → (B, T).

    Over tokens of π_old, ρ k3 and its gradient have the means KL(π ‖ π_ref) and ∇KL(π ‖ π_ref), after however
    many updates. DeepSeek-V3.2, arXiv 2512.02556; TRL's ``use_bias_correction_kl``.
    """
    ratio = token_log_ratio(log_prob, old_log_prob, response_mask).exp()
    loss = clipped_surrogate(log_prob, old_log_prob, advantages, response_mask, **clip)
    return loss + kl_coef * ratio * k3(log_prob, ref_log_prob, response_mask)
