"""A random mini-batch of responses of different lengths, its cuts, and parts as verl's engine passes them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import gvpo, mini_batch

ROWS_PER_PROMPT = 4
_NUM_ROWS = 16
MAX_RESPONSE_LENGTH = 24
_MAX_TOKENS = 48
"""Budget of a micro-batch in `_dynamic`."""

RowNumbers = list[int]


@dataclass(frozen=True)
class RaggedBatch:
    """Rows of different lengths, as in verl's workers, a list entry per row; those of a prompt are adjacent.

    Attributes:
        prompt: (B,) int64, number of each row's prompt.
        prompt_lengths: tokens of each prompt, ≥ 1.
        response_mask: (T_i,) int64; some responses contain tokens that the policy did not write.
        log_prob: (prompt + response,) each, the model's output before it is cut to the response; nats.
        entropy: the same of the distribution at each token.
        old_log_prob: (T_i,) each, as are ``ref_log_prob`` and ``advantages``.
    """

    prompt: Tensor
    prompt_lengths: list[int]
    response_mask: list[Tensor]
    log_prob: list[Tensor]
    entropy: list[Tensor]
    old_log_prob: list[Tensor]
    ref_log_prob: list[Tensor]
    advantages: list[Tensor]

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, prompt and response."""
        return [len(row) for row in self.log_prob]

    @property
    def num_tokens(self) -> int:
        """N: response tokens that the policy wrote."""
        return sum(int(mask.sum()) for mask in self.response_mask)

    def with_fresh_gradients(self) -> "RaggedBatch":
        """Return a copy whose ``log_prob`` and ``entropy`` are leaves without a gradient."""
        return replace(self, log_prob=_leaves(self.log_prob), entropy=_leaves(self.entropy))

    def groups(self, rows: RowNumbers, alpha: float = 0.0, anchor: Tensor | None = None) -> gvpo.GroupRows:
        """Return the groups of some rows, with Δ̄ at the mini-batch's policy, as a worker gives the loss.

        Args:
            rows: the rows.
            alpha: α of the weights |y|^(−α).
            anchor: log π′(y) of each response, (B,); None where the anchor is the old policy.
        """
        index, member, size = self._prompts()
        weight = gvpo.length_weight(torch.stack([mask.sum() for mask in self.response_mask]), alpha)

        def mean(log_prob: Tensor) -> Tensor:
            sums = gvpo.drift_sums(log_prob, index, member, int(index.max()) + 1)
            return gvpo.mean_drift(sums, index, member, size)

        new, old = (weight * self.sums(each).double() for each in (self.written(), self.old_log_prob))
        old_deviation = old - mean(old)
        deviation = old_deviation if anchor is None else weight * anchor - mean(weight * anchor)
        return gvpo.GroupRows(
            index[rows], size[rows], mean(new - old)[rows], old_deviation[rows], deviation[rows]
        )

    def written_gradients(self, leaves: list[Tensor]) -> list[Tensor]:
        """Return the gradients at the tokens of the responses, 0 where there is none: (T_i,) each."""
        grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        return _written(grads, self.prompt_lengths)

    def sums(self, log_prob: list[Tensor]) -> Tensor:
        """Return the sum over each response's own tokens: (B,)."""
        columns = zip(log_prob, self.response_mask, strict=True)
        return torch.stack([(row.detach() * mask).sum() for row, mask in columns])

    def _prompts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the prompt of each row, whether it has tokens, and how many of the prompt's have: (B,)."""
        index = self.prompt
        member = torch.stack([mask.any() for mask in self.response_mask])
        return index, member, index.bincount(weights=member)[index].long()

    def written(self) -> list[Tensor]:
        """Return the log-probs at the tokens of the responses: (T_i,) each."""
        return _written(self.log_prob, self.prompt_lengths)

    def statistic(self, config: Any, rows: RowNumbers) -> Tensor | None:
        """Return what the configured loss needs of all rows for the tokens of some, padded: (B, T)."""
        loss = catalogue.LOSSES.get(str(config.policy_loss.loss_mode))
        if loss is None or loss.needs is None:
            return None
        masks = [mask.bool() for mask in self.response_mask]
        written, lengths = self.written(), torch.stack([mask.sum() for mask in masks])
        columns = [torch.cat(each).detach() for each in (written, self.old_log_prob, self.advantages)]
        prompt, _, size = self._prompts()
        part = mini_batch.PartOfRows(
            torch.stack(columns)[:, torch.cat(masks)],
            torch.stack([lengths, torch.arange(len(self)), prompt, size]),
        )
        compute = loss.needs.compute
        values = mini_batch.evaluated(lambda each: compute(each, config), [part], own=0, seed=0)
        of_rows = torch.split(values.to(columns[0].dtype), lengths.tolist())
        padded = [torch.zeros(len(masks[row]), dtype=columns[0].dtype) for row in rows]
        for row, tokens in zip(rows, padded, strict=True):
            tokens[masks[row]] = of_rows[row]
        return torch.nn.utils.rnn.pad_sequence(padded, batch_first=True)


def ragged_batch(dtype: torch.dtype, seed: int = 0) -> RaggedBatch:
    """Draw random rows, with ratios inside and outside the clip range.

    `ROWS_PER_PROMPT` rows answer one prompt; the last row is padding, so the last prompt has one less.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int, scale: float) -> Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    rows = _NUM_ROWS
    prompts = torch.randint(1, 6, (rows,), generator=generator).tolist()
    lengths = torch.randint(1, MAX_RESPONSE_LENGTH + 1, (rows,), generator=generator).tolist()
    masks = [torch.ones(length, dtype=torch.int64) for length in lengths]
    masks[-1][:] = 0  # padding
    for third, mask in enumerate(sorted(masks[:-1], key=len)[-3:]):
        mask.tensor_split(3)[third].zero_()  # tokens of a tool: at the start, in the middle, at the end
    log_prob = [-1 + normal(p + t, 0.5) for p, t in zip(prompts, lengths, strict=True)]
    written = _written(log_prob, prompts)
    return RaggedBatch(
        prompt=torch.arange(rows) // ROWS_PER_PROMPT,
        prompt_lengths=prompts,
        response_mask=masks,
        log_prob=log_prob,
        old_log_prob=[row + normal(len(row), 0.3) for row in written],
        ref_log_prob=[row + normal(len(row), 0.3) for row in written],
        advantages=[normal(1, 1.0) * mask for mask in masks],
        entropy=[normal(len(row), 1.0).abs() for row in log_prob],
    )


def _leaves(rows: list[Tensor]) -> list[Tensor]:
    return [row.detach().clone().requires_grad_() for row in rows]


def _written(log_prob: list[Tensor], prompt_lengths: list[int]) -> list[Tensor]:
    """Cut the model's output to the response: (T_i,) each."""
    return [row[prompt - 1 : -1] for row, prompt in zip(log_prob, prompt_lengths, strict=True)]


def micro_batch(
    mini_batch: RaggedBatch, rows: RowNumbers, dp_size: int, *, with_entropy: bool = False
) -> tuple[dict[str, Tensor], TensorDict]:
    """Return (model output, data) of some rows, nested as verl's engine passes them to ``ppo_loss``."""

    def nested(values: list[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor([values[row] for row in rows], layout=torch.jagged)

    data = TensorDict(
        {
            "prompts": nested(
                [torch.zeros(length, dtype=torch.int64) for length in mini_batch.prompt_lengths]
            ),
            "responses": nested([torch.zeros_like(mask) for mask in mini_batch.response_mask]),
            "response_mask": nested(mini_batch.response_mask),
            "old_log_probs": nested(mini_batch.old_log_prob),
            "ref_log_prob": nested(mini_batch.ref_log_prob),
            "advantages": nested(mini_batch.advantages),
        },
        batch_size=len(rows),
    )
    counts = {"batch_num_tokens": mini_batch.num_tokens, "global_batch_size": len(mini_batch)}
    tu.assign_non_tensor(data, dp_size=dp_size, **counts)
    entropy = {"entropy": nested(mini_batch.entropy)} if with_entropy else {}
    return {"log_probs": nested(mini_batch.log_prob)} | entropy, data


def _shuffled(rows: RowNumbers, lengths: list[int]) -> list[RowNumbers]:  # noqa: ARG001  # as all
    """Cut into two micro-batches of random size, with the rows in random order."""
    generator = torch.Generator().manual_seed(len(rows))
    order = [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]
    middle = int(torch.randint(1, len(rows), (1,), generator=generator))
    return [order[:middle], order[middle:]]


def _dynamic(rows: RowNumbers, lengths: list[int]) -> list[RowNumbers]:
    """Cut by a budget of tokens: longest rows first, each into the first micro-batch where it fits."""
    parts: list[RowNumbers] = []
    for row in sorted(rows, key=lambda row: -lengths[row]):
        fitting = [part for part in parts if sum(lengths[r] for r in part) + lengths[row] <= _MAX_TOKENS]
        if fitting:
            fitting[0].append(row)
        else:
            parts.append([row])
    return parts


SPLITS: dict[str, Callable[[RowNumbers, list[int]], list[RowNumbers]]] = {
    "whole": lambda rows, _: [rows],
    "halves": lambda rows, _: [rows[: len(rows) // 2], rows[len(rows) // 2 :]],
    "singles": lambda rows, _: [[row] for row in rows],
    "uneven": lambda rows, _: [rows[:1], rows[:0:-1]],
    "shuffled": _shuffled,
    "dynamic": _dynamic,
}
"""Name → function that cuts a rank's rows into micro-batches, given the length of every row."""


def cut(lengths: list[int], split: str, dp_size: int) -> list[list[RowNumbers]]:
    """Return the micro-batches of each rank; ranks get equally many rows, strided as by verl's balancing."""
    rows = list(range(len(lengths)))
    ranks = [rows[rank::dp_size] for rank in range(dp_size)]
    return [SPLITS[split](own, lengths) for own in ranks]
