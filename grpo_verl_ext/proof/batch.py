"""A synthetic rollout that has what tells two algorithms apart, its cuts, and its parts as verl passes them.

Responses at the budget, of one token and in between, with tokens of a tool, one without any token left;
groups of three to five; two rewards and two steps each; a policy that has moved by nothing to far outside of
every clip, and rows of one token on both sides of each bound that a configuration has.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn.functional import pad
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions
from verl.workers.utils.losses import ppo_loss

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import compute
from grpo_verl_ext.catalogue.gvpo import alpha_of
from grpo_verl_ext.catalogue.record import INPUTS
from grpo_verl_ext.verl_plugin import wire

_F64 = torch.float64
ROWS_PER_PROMPT, MAX_RESPONSE_LENGTH, _PROMPT_LENGTH = 4, 24, 3
_SIZES, _LENGTHS = (4, 4, 3, 5), (24, 24, 1, 7, 12, 3, 24, 9, 5, 1, 16, 8, 20, 2, 11, 6)
_DRIFTS = (1e-4, 0.02, 0.3, 1.0)
_TOOL_ROWS, _EMPTY_ROW, _FALLEN_ROW, _OTHER_ENGINE_ROW = {0: 0, 10: 1, 12: 2}, 15, 1, 4
"""Row → the third of its tokens that a tool wrote; the row whose tokens were all rejected; a worse response
that has become much less likely, though some of its tokens have not; one far outside of a correction's."""
_BESIDE, _OLD, _SMALLEST = 0.004, 0.3, 0.01
"""Of the rows beside a bound: relative distance from it, old probability, smallest ratio and inverse of the
largest, at which verl does not yet cut off k3 of a KL."""
SPLITS = ("whole", "halves", "singles", "uneven", "shuffled", "dynamic")
"""Ways to cut a rank's rows into micro-batches."""


@dataclass(frozen=True)
class Rollout:
    """Responses whose ``log_prob`` is the policy at a later update, and what else verl's trainer has of them.

    Tensors are (B, T), and 0 after the end of a response. ``prompt`` is (B,), the number of a prompt;
    ``rewards`` (B, M), of which verl sees the first; ``of_anchor`` (B,), log π′(y) of GVPO's features, or of
    the anchor of a training; None: the old policy is the anchor.
    """

    prompt: Tensor
    lengths: list[int]
    response_mask: Tensor
    log_prob: Tensor
    entropy: Tensor
    old_log_prob: Tensor
    ref_log_prob: Tensor
    rollout_log_prob: Tensor
    values: Tensor
    advantages: Tensor
    rewards: Tensor
    of_anchor: Tensor | None
    rollout_is_weights: Tensor | None = None

    @classmethod
    def synthetic(
        cls, bounds: Iterable[float] = (), num_rewards: int = 2, *, seed: int = 0, dtype: torch.dtype = _F64
    ) -> "Rollout":
        """Draw a rollout in float64, the same one for a seed, with lengths, groups and masks of all seeds.

        ``bounds`` are numbers in the configuration at which a loss may clip, truncate or mask.
        """
        generator = torch.Generator().manual_seed(seed)
        beside = [pair for bound in sorted({*bounds}) for pair in _beside(bound)]
        sizes, lengths = [*_SIZES, *[4] * (len(beside) // 4)], [*_LENGTHS, *[1] * len(beside)]
        row = torch.arange(len(lengths))
        given = torch.arange(MAX_RESPONSE_LENGTH) < torch.tensor(lengths).unsqueeze(-1)
        mask = given.long()
        for number, third in _TOOL_ROWS.items():
            mask[number, : lengths[number]].tensor_split(3)[third].zero_()
        mask[_EMPTY_ROW] = 0

        normal = partial(torch.randn, generator=generator, dtype=_F64)
        drift = torch.tensor(_DRIFTS, dtype=_F64)[row % len(_DRIFTS), None]
        old = (0.5 * normal(given.shape) - 1).clamp(max=-0.05)
        new = (old + drift * normal(given.shape)).clamp(max=-1e-3)
        new[_FALLEN_ROW, ::2] -= 1.4
        old[len(_LENGTHS) :, 0], new[len(_LENGTHS) :, 0] = torch.tensor(beside, dtype=_F64).view(-1, 2).T
        rewards = torch.rand(len(lengths), num_rewards, generator=generator, dtype=_F64)
        rewards[:, 0] = torch.where(row % 2 == 0, 1 + 0.1 * rewards[:, 0], 0)
        sampled = old + 0.2 * normal(given.shape)
        sampled[_OTHER_ENGINE_ROW] += 3 * normal(MAX_RESPONSE_LENGTH).sign()
        columns = {
            "log_prob": new,
            "entropy": normal(given.shape).abs(),
            "old_log_prob": old,
            "ref_log_prob": (old + new) / 2 + 0.05 * normal(given.shape),
            "rollout_log_prob": sampled,
            "values": 0.1 * normal(given.shape),
            "advantages": torch.zeros_like(old),
        }
        prompt = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        of_anchor = (old * given).sum(-1) + normal(len(lengths))
        tensors = {name: values * given for name, values in columns.items()}
        tensors |= {"rewards": rewards, "of_anchor": of_anchor}
        return cls(prompt, lengths, mask, **{name: values.to(dtype) for name, values in tensors.items()})

    @property
    def given(self) -> Tensor:
        """Which positions are tokens of a response: (B, T) bool."""
        return torch.arange(self.log_prob.shape[1]) < torch.tensor(self.lengths).unsqueeze(-1)

    @property
    def scores(self) -> Tensor:
        """The first reward at the last token of each response: (B, T)."""
        ends = torch.tensor(self.lengths).unsqueeze(-1) - 1
        return torch.zeros_like(self.log_prob).scatter(1, ends, self.rewards[:, :1])

    @property
    def steps(self) -> wire.BatchSteps:
        """Two steps for each response, one that ends in its middle and one at its end."""
        ends = torch.tensor([[max(0, length // 2 - 1), length - 1] for length in self.lengths])
        rewards = torch.stack([self.rewards[:, 0], self.rewards[:, 0].flip(0)], dim=1)
        rows = torch.arange(len(ends)).repeat_interleave(2)
        return wire.BatchSteps(rewards.flatten(), rows, ends.flatten())

    @property
    def tokens(self) -> compute.Tokens:
        """What a loss gets of the responses."""
        return compute.Tokens(self.log_prob, self.old_log_prob, self.advantages, self.response_mask)

    def cut(self, split: str, dp_size: int) -> list[list[list[int]]]:
        """Return the micro-batches of each rank by one of `SPLITS`; rows go to ranks in turn, as by verl."""
        ranks, lengths = [], self.lengths
        for rows in ([*range(rank, len(lengths), dp_size)] for rank in range(dp_size)):
            own, half = [lengths[row] for row in rows], len(rows) // 2
            generator = torch.Generator().manual_seed(len(rows))
            order = torch.randperm(len(rows), generator=generator).tolist()
            middle = int(torch.randint(1, len(rows), (1,), generator=generator))
            # As verl cuts by a budget of tokens, here two responses' at most.
            count = math.ceil(sum(own) / (2 * MAX_RESPONSE_LENGTH))
            parts = {
                "whole": [[*range(len(rows))]],
                "halves": [[*range(half)], [*range(half, len(rows))]],
                "singles": [[each] for each in range(len(rows))],
                "uneven": [[0], [*range(len(rows) - 1, 0, -1)]],
                "shuffled": [order[:middle], order[middle:]],
                "dynamic": get_seqlen_balanced_partitions(own, count, equal_size=False),
            }
            ranks.append([[rows[each] for each in part] for part in parts[split]])
        return ranks

    def micro_batch(self, rows: list[int], dp_size: int) -> tuple[dict[str, Tensor], TensorDict]:
        """Return (model output, data) of some rows, nested as verl's engine passes them to ``ppo_loss``."""
        columns = {
            "responses": torch.zeros_like(self.response_mask),
            "response_mask": self.response_mask,
            "old_log_probs": self.old_log_prob,
            "ref_log_prob": self.ref_log_prob,
            "advantages": self.advantages,
            "rollout_is_weights": self.rollout_is_weights,
        }
        lengths = [self.lengths[row] for row in rows]
        fields = {name: _jagged(x[rows], lengths) for name, x in columns.items() if x is not None}
        prompts = torch.zeros(len(rows), _PROMPT_LENGTH, dtype=torch.int64)
        fields["prompts"] = _jagged(prompts, [_PROMPT_LENGTH] * len(rows))
        counts = {"batch_num_tokens": int(self.response_mask.sum()), "global_batch_size": len(self.lengths)}
        data = tu.get_tensordict(fields, counts | {"dp_size": dp_size})
        outputs = {"log_probs": self.log_prob, "entropy": self.entropy}
        around = (_PROMPT_LENGTH - 1, 1)  # the last position of the prompt is about the first token
        whole = [_PROMPT_LENGTH + length for length in lengths]
        return {name: _jagged(pad(x, around)[rows], whole) for name, x in outputs.items()}, data

    def value_and_gradient(
        self, actor: Any, ranks: list[list[list[int]]] | None = None, *, is_ours: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return L, and its gradient by log-probs and entropies: (2, B, T), combined from parts as verl does.

        ``actor`` is verl's dataclass; ``ranks`` are the micro-batches of each rank, None: all rows in one.
        With ``is_ours`` the loss gets what it needs of the mini-batch.
        """
        ranks = ranks or [[[*range(len(self.lengths))]]]
        log_prob, entropy = (each.detach().clone().requires_grad_() for each in (self.log_prob, self.entropy))
        rows, value = replace(self, log_prob=log_prob, entropy=entropy), log_prob.new_zeros(())
        loss = catalogue.LOSSES.get(str(actor.policy_loss.loss_mode)) if is_ours else None
        inputs = {name: getattr(self, name) for name in INPUTS if is_ours and name != "statistic"}
        inputs |= compute.statistic(loss, self.tokens, self.prompt, actor) if loss else {}
        groups: Any = None
        if isinstance(loss, catalogue.GroupLoss):
            alpha = alpha_of(actor.policy_loss)
            groups = compute.group_rows(self.tokens, self.prompt, inputs["statistic"], alpha, self.of_anchor)
        for numbers in itertools.chain(*ranks):
            output, data = rows.micro_batch(numbers, len(ranks))
            width = max(rows.lengths[number] for number in numbers)
            told: dict[str, Any] = {"inputs": {name: x[numbers, :width] for name, x in inputs.items()}}
            if groups:
                own = (x[numbers] for x in vars(groups).values() if isinstance(x, Tensor))
                told["groups"] = type(groups)(*own)
            with wire.passing(**told):
                part, _ = ppo_loss(actor, output, data)
            value = value + part / len(ranks)
        both = torch.autograd.grad(value, (log_prob, entropy), allow_unused=True, materialize_grads=True)
        return value.detach(), torch.stack(both)


def _jagged(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the beginnings of rows as a nested tensor."""
    rows = [row[:length] for row, length in zip(values, lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _beside(bound: float) -> Iterator[tuple[float, float]]:
    """Yield (old, new) log-probs of four rows, two on each side, for each way to read a bound.

    It may be of ratios, as 1 ± x, e^{±x} or x, or a distance x of probabilities, or a KL.
    """
    sides = []
    for x in (min(bound * factor, 500) for factor in (1 - _BESIDE, 1 + _BESIDE)):
        ratios = [1 + x, 1 - x, math.exp(x), math.exp(-x), x, 1 + x / _OLD, 1 - x / _OLD]
        for end in (1 - 1e-9, 1e-9):
            low, high = _OLD, end
            for _ in range(60):
                p = (low + high) / 2
                kl = _OLD * math.log(_OLD / p) + (1 - _OLD) * math.log((1 - _OLD) / (1 - p))
                low, high = (p, high) if kl < x else (low, p)
            ratios.append(low / _OLD)
        sides.append(ratios)
    for near, far in zip(*sides, strict=True):
        if all(_SMALLEST < ratio < 1 / _SMALLEST for ratio in (near, far)):
            old = min(math.log(_OLD), -math.log(max(near, far)) - 0.05)
            yield from ((old, old + math.log(ratio)) for ratio in (near, near, far, far))
