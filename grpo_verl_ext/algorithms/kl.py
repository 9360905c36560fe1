"""Per-token estimators of KL(π_θ ‖ π_ref) from sampled tokens, in nats; reduce with `aggregation`.

With p = log_prob, q = ref_log_prob and a token drawn from π_θ; (B, T) → (B, T), fp32 or better, 0 under the
mask whatever stands there. Gradient flows through ``log_prob``. Log-ratios are limited to ±20; beyond it
there is no gradient. An unbiased value does not make an unbiased gradient: in a loss, the gradient of `k2`
is that of the KL on-policy, while those of `k1` and `k3` are not, which is what `with_k2_gradient` is for.
J. Schulman, "Approximating KL _Divergence", 2020.

**Bias.** At a position the policy π = softmax(logits) gives every token v a probability, so the mean of an
estimator over x ~ π, and the mean of its gradient in a loss, where the drawn token is held fixed, are finite
sums, free of sampling noise (`expected_with_gradient`):

    E[k] = Σ_v π(v) k(v),      E[∇k] = Σ_v π(v) ∇k(v),      ∇ with respect to the logits.

The second is not the gradient of the first, which would also move π(v). E[∇k1] = 0: as a loss, k1 has no
effect on average. E[∇k2] = ∇KL(π ‖ π_ref), as wanted. E[∇k3] = ∇KL(π_ref ‖ π) = π − π_ref, the gradient of
the KL in the other direction. All of this holds up to the ±20.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from grpo_verl_ext.algorithms.ragged import BLOCK
from grpo_verl_ext.algorithms.surrogate import token_log_ratio
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


_KlEstimator = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log_prob, ref_log_prob, mask) → nats, elementwise."""
_KL_ESTIMATORS: dict[str, _KlEstimator] = {"k1": k1, "k2": k2, "k3": k3}


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


def exact(logits: Tensor, ref_logits: Tensor, response_mask: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Σ_v π_θ(v) [log π_θ(v) − log π_ref(v)] at each token: the exact KL, given the context.

    Summed over a response drawn from π_θ, and averaged over responses, an unbiased estimate of the sequences'
    KL, with less variance than any that looks at the drawn tokens alone (Rao–Blackwell).

    Args:
        logits: (B, T, V), divided by ``temperature`` as the sampler divides them; gradient flows.
        ref_logits: (B, T, V).
        response_mask: (B, T).

    Returns:
        (B, T) in nats, ≥ 0 up to rounding, fp32 or better; 0 under the mask.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    present = response_mask.bool()
    log_prob, ref_log_prob = (
        (each.to(wide).masked_fill(~present.unsqueeze(-1), 0.0) / temperature).log_softmax(dim=-1)
        for each in (logits, ref_logits)
    )
    per_token = kl_div(ref_log_prob, log_prob, reduction="none", log_target=True).sum(dim=-1)
    return per_token.masked_fill(~present, 0)


class _Divergence(NamedTuple):
    """A KL, or an estimate of it, at N positions, with its gradient.

    Attributes:
        value: (N,) nats.
        gradient: (N, V), of each position's value with respect to its logits.
    """

    value: Tensor
    gradient: Tensor


def expected_with_gradient(estimator: _KlEstimator, logits: Tensor, ref_logits: Tensor) -> _Divergence:
    """E[k] and E[∇k] over a token from π at each of N positions: (N, V) → constants, in the logits' dtype."""
    logits = logits.detach().requires_grad_()
    log_prob, ref_log_prob = logits.log_softmax(dim=-1), ref_logits.log_softmax(dim=-1)
    estimates = estimator(log_prob, ref_log_prob, torch.ones_like(logits))
    return _divergence((log_prob.detach().exp() * estimates).sum(dim=-1), logits)


def exact_with_gradient(logits: Tensor, ref_logits: Tensor) -> _Divergence:
    """KL(π ‖ π_ref), `exact`, and its gradient at each of N positions: (N, V) → constants."""
    logits = logits.detach().requires_grad_()
    mask = torch.ones(1, len(logits), device=logits.device)
    return _divergence(exact(logits.unsqueeze(0), ref_logits.unsqueeze(0), mask).squeeze(0), logits)


def _divergence(value: Tensor, logits: Tensor) -> _Divergence:
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return _Divergence(value.detach(), gradient)
