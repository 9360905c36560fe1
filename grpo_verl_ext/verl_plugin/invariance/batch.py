"""A random mini-batch of responses of different lengths, and its parts as verl's engine passes them."""

from dataclasses import dataclass, replace

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu

from grpo_verl_ext.algorithms import gvpo
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.invariance.cuts import RowNumbers

GROUP_SIZE = 4
_NUM_PROMPTS = 4
MAX_RESPONSE_LENGTH = 24


@dataclass(frozen=True)
class RaggedBatch:
    """Rows of different lengths, as in verl's workers; one list entry per row, and the last row is padding.

    `GROUP_SIZE` rows in order answer one prompt; the last prompt has one response less.

    Attributes:
        prompt_lengths: tokens of each prompt, ≥ 1.
        response_mask: (T_i,) int64; some responses contain tokens that the policy did not write.
        log_prob: (prompt + response,) each, the model's output before it is cut to the response; nats.
        entropy: the same of the distribution at each token.
        old_log_prob: (T_i,) each, as are ``ref_log_prob`` and ``advantages``.
    """

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

    def groups(self, rows: RowNumbers) -> wire.GroupRows:
        """Return the groups of some rows, with Δ̄ at the mini-batch's policy, as a worker tells the loss."""
        index = torch.arange(len(self)) // GROUP_SIZE
        member = torch.stack([mask.any() for mask in self.response_mask])
        log_ratio = torch.stack(
            [
                ((log_prob.detach() - old) * mask).sum()
                for log_prob, old, mask in zip(
                    _written(self.log_prob, self.prompt_lengths),
                    self.old_log_prob,
                    self.response_mask,
                    strict=True,
                )
            ]
        )
        size = index.bincount(weights=member)[index].long()
        sums = gvpo.drift_sums(log_ratio, index, member, _NUM_PROMPTS)
        drift = gvpo.mean_drift(sums, index, member, size)[rows]
        of_metrics = torch.zeros_like(drift)
        return wire.GroupRows(index[rows], size[rows], lambda *_: drift, of_metrics, of_metrics)


def ragged_batch(dtype: torch.dtype, seed: int = 0) -> RaggedBatch:
    """Draw `_NUM_PROMPTS` · `GROUP_SIZE` random rows, with ratios inside and outside the clip range."""
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int, scale: float) -> Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    rows = _NUM_PROMPTS * GROUP_SIZE
    prompts = torch.randint(1, 6, (rows,), generator=generator).tolist()
    lengths = torch.randint(1, MAX_RESPONSE_LENGTH + 1, (rows,), generator=generator).tolist()
    masks = [torch.ones(length, dtype=torch.int64) for length in lengths]
    masks[-1][:] = 0  # padding
    for third, mask in enumerate(sorted(masks[:-1], key=len)[-3:]):
        mask.tensor_split(3)[third].zero_()  # tokens of a tool: at the start, in the middle, at the end
    log_prob = [-1 + normal(p + t, 0.5) for p, t in zip(prompts, lengths, strict=True)]
    written = _written(log_prob, prompts)
    return RaggedBatch(
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
