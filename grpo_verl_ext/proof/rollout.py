"""A synthetic rollout in float64 that has what tells two algorithms apart.

Responses at the budget, of one token and in between, with tokens of a tool, one without any token left;
groups of three to five; two rewards and two steps each; a policy that has moved by nothing to far outside of
every clip, and rows of one token on both sides of each bound that a configuration has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_verl_ext.proof.batch import RaggedBatch
from grpo_verl_ext.verl_plugin.wire import BatchSteps

F64 = torch.float64
_SIZES = (4, 4, 3, 5)
_LENGTHS = (24, 24, 1, 7, 12, 3, 24, 9, 5, 1, 16, 8, 20, 2, 11, 6)
_DRIFTS = (1e-4, 0.02, 0.3, 1.0)
_TOOL_ROWS, _EMPTY_ROW, _FALLEN_ROW = {0: 0, 10: 1, 12: 2}, 15, 1
"""Row → the third of its tokens that a tool wrote; the row whose tokens were all rejected; a worse response
that has become much less likely, though some of its tokens have not."""
_BESIDE = 0.004
"""Relative distance of the rows beside a bound from it."""
_SMALLEST = 0.01
"""Smallest ratio of these rows, and inverse of the largest, at which verl does not yet cut off k3 of a KL."""
_OLD = 0.3
"""Old probability of their tokens."""


@dataclass(frozen=True)
class Rollout:
    """Rows whose ``log_prob`` is the policy at a later update, and what else verl's trainer has of them.

    Attributes:
        rollout_log_prob: (T_i,) each, of the engine that sampled.
        rewards: (B, M) by M reward functions; the first is the one that verl sees.
        teacher: (B,) log π_T(y).
        values: (T_i,) each, of a critic.
    """

    rows: RaggedBatch
    rollout_log_prob: list[Tensor]
    rewards: Tensor
    teacher: Tensor
    values: list[Tensor]

    @property
    def prompts(self) -> list[str]:
        """The prompt id of each row, as verl's ``uid``."""
        return [f"prompt{number}" for number in self.rows.prompt.tolist()]

    @property
    def keys(self) -> list[str]:
        """verl's key of each row."""
        return [f"{prompt}_{row}_0" for row, prompt in enumerate(self.prompts)]

    @property
    def steps(self) -> BatchSteps:
        """Two steps for each response, one that ends in its middle and one at its end."""
        ends = [[max(0, len(mask) // 2 - 1), len(mask) - 1] for mask in self.rows.response_mask]
        rewards = torch.stack([self.rewards[:, 0], self.rewards[:, 0].flip(0)], dim=1)
        row = torch.arange(len(ends)).repeat_interleave(2)
        return BatchSteps(rewards.flatten(), row, torch.tensor(ends).flatten())

    def on_policy(self) -> Rollout:
        """Return the same at the first update, whose policy is the old one."""
        rows = self.rows
        columns = zip(rows.log_prob, rows.old_log_prob, rows.prompt_lengths, strict=True)
        log_prob = [torch.cat([new[: prompt - 1], old, new[-1:]]) for new, old, prompt in columns]
        return replace(self, rows=replace(rows, log_prob=log_prob))

    def with_old(self, log_prob: list[Tensor]) -> Rollout:
        """Return the same with other log-probs of the old policy, (T_i,) each."""
        return replace(self, rows=replace(self.rows, old_log_prob=log_prob))


def synthetic_rollout(bounds: Iterable[float], num_rewards: int = 2) -> Rollout:
    """Draw a rollout, always the same one.

    Args:
        bounds: numbers in the configuration at which a loss may clip, truncate or mask.
        num_rewards: M ≥ 1.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64)

    beside = [pair for bound in sorted({*bounds}) for pair in _beside(bound)]
    sizes = [*_SIZES, *[4] * (len(beside) // 4)]
    masks = [torch.ones(length, dtype=torch.int64) for length in (*_LENGTHS, *[1] * len(beside))]
    for row, third in _TOOL_ROWS.items():
        masks[row].tensor_split(3)[third].zero_()
    masks[_EMPTY_ROW].zero_()
    prompts = torch.randint(1, 6, (len(masks),), generator=generator).tolist()
    old = [(-1 + 0.5 * normal(length)).clamp(max=-0.05) for length in _LENGTHS]
    new = [
        (row + _DRIFTS[at % len(_DRIFTS)] * normal(len(row))).clamp(max=-1e-3) for at, row in enumerate(old)
    ]
    new[_FALLEN_ROW][::2] -= 1.4
    old += [torch.tensor([log_prob], dtype=F64) for log_prob, _ in beside]
    new += [torch.tensor([log_prob], dtype=F64) for _, log_prob in beside]
    rewards = torch.rand(len(masks), num_rewards, generator=generator, dtype=F64)
    is_right = torch.tensor([row % 2 == 0 for row in range(len(masks))])
    rewards[:, 0] = torch.where(is_right, 1 + 0.1 * rewards[:, 0], 0)
    entropy = [normal(prompt + len(mask)).abs() for prompt, mask in zip(prompts, masks, strict=True)]
    whole = [torch.cat([normal(p - 1), row, normal(1)]) for p, row in zip(prompts, new, strict=True)]
    rows = RaggedBatch(
        prompt=torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)),
        prompt_lengths=prompts,
        response_mask=masks,
        log_prob=whole,
        entropy=entropy,
        old_log_prob=old,
        ref_log_prob=[(a + b) / 2 + 0.05 * normal(len(a)) for a, b in zip(old, new, strict=True)],
        advantages=[torch.zeros(len(row), dtype=F64) for row in old],
    )
    sampled = [row + 0.2 * normal(len(row)) for row in old]
    sampled[4] = sampled[4] + 3 * normal(len(sampled[4])).sign()  # far outside of any bound of a correction
    teacher = torch.stack([row.sum() for row in old]) + normal(len(masks))
    return Rollout(rows, sampled, rewards, teacher, [0.1 * normal(len(row)) for row in old])


def _beside(bound: float) -> Iterator[tuple[float, float]]:
    """Yield (old, new) log-probs of four rows, two on each side, for each way to read a bound.

    The bound may stand for a ratio 1 ± x, e^{±x} or x, or for a distance of probabilities or a binary KL.
    """
    ways: tuple[Callable[[float], float], ...] = (
        lambda x: 1 + x,
        lambda x: 1 - x,
        math.exp,
        lambda x: math.exp(-x),
        lambda x: x,
        lambda x: 1 + x / _OLD,
        lambda x: 1 - x / _OLD,
        lambda x: _by_divergence(x, 1 - 1e-9) / _OLD,
        lambda x: _by_divergence(x, 1e-9) / _OLD,
    )
    for ratio_of in ways:
        near, far = (ratio_of(bound * factor) if bound < 500 else 0 for factor in (1 - _BESIDE, 1 + _BESIDE))
        if all(_SMALLEST < ratio < 1 / _SMALLEST for ratio in (near, far)):
            old = min(math.log(_OLD), -math.log(max(near, far)) - 0.05)
            for ratio in (near, near, far, far):
                yield old, old + math.log(ratio)


def _by_divergence(bound: float, end: float) -> float:
    """Return the probability p between `_OLD` and ``end`` with KL(_OLD ‖ p) = bound, or ``end``."""
    low, high = _OLD, end
    for _ in range(60):
        middle = (low + high) / 2
        kl = _OLD * math.log(_OLD / middle) + (1 - _OLD) * math.log((1 - _OLD) / (1 - middle))
        low, high = (middle, high) if kl < bound else (low, middle)
    return low
