"""Measure how much a loss changes when the mini-batch is cut differently, through verl's own ``ppo_loss``.

A random mini-batch of responses of different lengths is cut into data-parallel ranks and micro-batches in
many ways. For each, value and gradient are combined as verl does (sum over micro-batches, average over ranks)
and compared with the uncut mini-batch on one rank.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from rich.table import Column, Table
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.verl_plugin import context
from grpo_verl_ext.verl_plugin.loss_config import CONSTANT_LENGTH, LossConfig
from grpo_verl_ext.verl_plugin.losses import VARIANTS
from grpo_verl_ext.verl_plugin.presets import PRESETS

GROUP_SIZE = 4
GVPO_BETA = 0.1
NUM_PROMPTS = 4
MAX_RESPONSE_LENGTH = 24
MAX_TOKENS = 2 * MAX_RESPONSE_LENGTH
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
"""Largest relative error that rounding explains; a wrong denominator is wrong by at least per cents."""

Rows = list[int]


@dataclass(frozen=True)
class Case:
    """A loss as it is chosen in verl's configuration.

    Attributes:
        name: its name in the report.
        loss_mode: ``actor.policy_loss.loss_mode``.
        loss_agg_mode: ``actor.loss_agg_mode``.
        loss_scale_factor: ``actor.loss_scale_factor``.
        numbers: other keys of ``actor`` that the loss reads, such as clip ranges.
        split_dependent: the loss depends on the split by its definition, so a difference is not a failure.
    """

    name: str
    loss_mode: str
    loss_agg_mode: str
    loss_scale_factor: int | None = None
    split_dependent: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)


OUR_CASES = tuple(
    Case(
        name=loss_mode,
        loss_mode=loss_mode,
        loss_agg_mode=variant.loss_agg_mode,
        loss_scale_factor=MAX_RESPONSE_LENGTH if variant.loss_agg_mode == CONSTANT_LENGTH else None,
        split_dependent=variant.depends_on_split,
    )
    for loss_mode, variant in VARIANTS.items()
)

PRESET_CASES = tuple(
    Case(name, preset.loss_mode, preset.loss_agg_mode, numbers=preset.numbers)
    for name, preset in PRESETS.items()
    if name not in VARIANTS
)
"""Presets on a loss of verl's, or on one of ours under another name."""

VERL_CASES = (
    Case("verl token-mean", "vanilla", "token-mean"),
    Case("verl seq-mean-token-sum", "vanilla", "seq-mean-token-sum"),
    Case("verl seq-mean-token-mean", "vanilla", "seq-mean-token-mean"),
    Case("verl seq-mean-token-sum-norm, null", "vanilla", "seq-mean-token-sum-norm"),
    Case("verl seq-mean-token-sum-norm, set", "vanilla", "seq-mean-token-sum-norm", 24),
    Case("verl gspo", "gspo", "seq-mean-token-mean"),
    Case("verl gspo, token-mean", "gspo", "token-mean"),
    Case("verl cispo", "cispo", "token-mean"),
    Case("verl sapo", "sapo", "seq-mean-token-mean"),
    Case("verl gpg", "gpg", "token-mean"),
    Case("verl dppo_tv", "dppo_tv", "token-mean"),
    Case("verl dppo_kl", "dppo_kl", "token-mean"),
    Case("verl geo_mean", "geo_mean", "seq-mean-token-mean"),
    Case("verl clip_cov", "clip_cov", "token-mean"),
    Case("verl kl_cov", "kl_cov", "token-mean"),
)


@dataclass(frozen=True)
class RaggedBatch:
    """Rows of different lengths, as in verl's workers; one list entry per row, and the last row is padding.

    Attributes:
        prompt_lengths: tokens of each prompt, ≥ 1.
        response_mask: (T_i,) int64; some responses contain tokens that the policy did not write.
        log_prob: (prompt + response,) each, the model's output before it is cut to the response; nats.
        old_log_prob: (T_i,) each, as are ``ref_log_prob`` and ``advantages``.
    """

    prompt_lengths: list[int]
    response_mask: list[Tensor]
    log_prob: list[Tensor]
    old_log_prob: list[Tensor]
    ref_log_prob: list[Tensor]
    advantages: list[Tensor]

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    @property
    def num_tokens(self) -> int:
        """N: response tokens that the policy wrote."""
        return sum(int(mask.sum()) for mask in self.response_mask)

    def with_fresh_gradients(self) -> "RaggedBatch":
        """Return a copy whose ``log_prob`` are leaves without a gradient."""
        return replace(self, log_prob=[row.detach().clone().requires_grad_() for row in self.log_prob])


@dataclass(frozen=True)
class Measurement:
    """Relative errors of one cut against the uncut mini-batch."""

    loss: str
    dtype: str
    split: str
    dp_size: int
    value_error: float
    gradient_error: float
    tolerance: float
    split_dependent: bool

    @property
    def error(self) -> float:
        """The larger of the two errors."""
        return max(self.value_error, self.gradient_error)

    @property
    def passed(self) -> bool:
        """Whether the error is within tolerance, or the loss split-dependent by definition."""
        return self.split_dependent or self.error <= self.tolerance


def ragged_batch(dtype: torch.dtype, seed: int = 0) -> RaggedBatch:
    """Draw `NUM_PROMPTS` · `GROUP_SIZE` random rows, with ratios inside and outside the clip range."""
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int, scale: float) -> Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    rows = NUM_PROMPTS * GROUP_SIZE
    prompts = torch.randint(1, 6, (rows,), generator=generator).tolist()
    lengths = torch.randint(1, MAX_RESPONSE_LENGTH + 1, (rows,), generator=generator).tolist()
    masks = [torch.ones(length, dtype=torch.int64) for length in lengths]
    longest = max(masks, key=len)
    longest[len(longest) // 3 : len(longest) // 2] = 0  # tokens of a tool
    masks[-1][:] = 0  # padding
    log_prob = [-1 + normal(p + t, 0.5) for p, t in zip(prompts, lengths, strict=True)]
    written = [row[p - 1 : -1] for row, p in zip(log_prob, prompts, strict=True)]
    return RaggedBatch(
        prompt_lengths=prompts,
        response_mask=masks,
        log_prob=log_prob,
        old_log_prob=[row + normal(len(row), 0.3) for row in written],
        ref_log_prob=[row + normal(len(row), 0.3) for row in written],
        advantages=[normal(1, 1.0) * mask for mask in masks],
    )


def whole(rows: Rows, lengths: list[int]) -> list[Rows]:  # noqa: ARG001  # all splits have one signature
    """Cut into one micro-batch."""
    return [rows]


def halves(rows: Rows, lengths: list[int]) -> list[Rows]:  # noqa: ARG001
    """Cut into two micro-batches of equally many rows."""
    middle = len(rows) // 2
    return [rows[:middle], rows[middle:]]


def singles(rows: Rows, lengths: list[int]) -> list[Rows]:  # noqa: ARG001
    """Cut into micro-batches of one row each."""
    return [[row] for row in rows]


def uneven(rows: Rows, lengths: list[int]) -> list[Rows]:  # noqa: ARG001
    """Cut into one row, and all the others in reverse order."""
    return [rows[:1], rows[:0:-1]]


def shuffled(rows: Rows, lengths: list[int]) -> list[Rows]:  # noqa: ARG001
    """Cut into two micro-batches of random size, with the rows in random order."""
    generator = torch.Generator().manual_seed(len(rows))
    order = [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]
    middle = int(torch.randint(1, len(rows), (1,), generator=generator))
    return [order[:middle], order[middle:]]


def dynamic(rows: Rows, lengths: list[int]) -> list[Rows]:
    """Cut by a budget of tokens: longest rows first, each into the first micro-batch where it fits."""
    parts: list[Rows] = []
    for row in sorted(rows, key=lambda row: -lengths[row]):
        fitting = [part for part in parts if sum(lengths[r] for r in part) + lengths[row] <= MAX_TOKENS]
        if fitting:
            fitting[0].append(row)
        else:
            parts.append([row])
    return parts


Split = Callable[[Rows, list[int]], list[Rows]]
SPLITS: dict[str, Split] = {
    split.__name__: split for split in (whole, halves, singles, uneven, shuffled, dynamic)
}
"""Name → function that cuts a rank's rows into micro-batches, given the length of every row."""


def cut(mini_batch: RaggedBatch, split: str, dp_size: int) -> list[list[Rows]]:
    """Return the micro-batches of each rank; ranks get equally many rows, strided as by verl's balancing."""
    rows = list(range(len(mini_batch)))
    lengths = [len(row) for row in mini_batch.log_prob]
    ranks = [rows[rank::dp_size] for rank in range(dp_size)]
    return [SPLITS[split](own, lengths) for own in ranks]


def actor_config(case: Case, **overrides: Any) -> ActorConfig:
    """Return verl's actor configuration for a case, with the KL term on."""
    options: dict[str, Any] = {
        "strategy": "fsdp",
        "rollout_n": GROUP_SIZE,
        "ppo_micro_batch_size_per_gpu": 1,
        "policy_loss": LossConfig(loss_mode=case.loss_mode, gvpo_beta=GVPO_BETA),
        "loss_agg_mode": case.loss_agg_mode,
        "loss_scale_factor": case.loss_scale_factor,
        "use_kl_loss": True,
        "kl_loss_coef": 0.04,
    }
    return ActorConfig(**{**options, **case.numbers, **overrides})


def micro_batch(mini_batch: RaggedBatch, rows: Rows, dp_size: int) -> tuple[dict[str, Tensor], TensorDict]:
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
    return {"log_probs": nested(mini_batch.log_prob)}, data


def value_and_gradient(
    config: ActorConfig, mini_batch: RaggedBatch, ranks: list[list[Rows]]
) -> tuple[Tensor, Tensor]:
    """Return value () and gradient (all tokens,) of the mini-batch, combined from its parts as verl does."""
    mini_batch = mini_batch.with_fresh_gradients()
    value = torch.zeros((), dtype=mini_batch.log_prob[0].dtype)
    for rows in (rows for rank in ranks for rows in rank):
        model_output, data = micro_batch(mini_batch, rows, dp_size=len(ranks))
        with context.GROUPS.set(context.at_first_update(len(rows), config.rollout_n)):
            loss, _ = ppo_loss(config, model_output, data)
        (loss / len(ranks)).backward()
        value += loss.detach() / len(ranks)
    return value, torch.cat([_gradient(row) for row in mini_batch.log_prob])


def measure(
    cases: Iterable[Case] = OUR_CASES,
    dtypes: Iterable[torch.dtype] = (torch.float32, torch.float64),
    dp_sizes: tuple[int, ...] = (1, 2, 4),
    seed: int = 0,
) -> Iterator[Measurement]:
    """Compare each case × dtype × split × number of ranks with the uncut mini-batch of the same dtype."""
    cases = tuple(cases)
    for dtype in dtypes:
        mini_batch = ragged_batch(dtype, seed)
        for case in cases:
            reference = value_and_gradient(actor_config(case), mini_batch, cut(mini_batch, "whole", 1))
            for dp_size in dp_sizes:
                for split in SPLITS:
                    config = actor_config(case, use_dynamic_bsz=split == "dynamic")
                    value, gradient = value_and_gradient(config, mini_batch, cut(mini_batch, split, dp_size))
                    yield Measurement(
                        loss=case.name,
                        dtype=str(dtype).removeprefix("torch."),
                        split=split,
                        dp_size=dp_size,
                        value_error=_relative_error(value, reference[0]),
                        gradient_error=_relative_error(gradient, reference[1]),
                        tolerance=TOLERANCE[dtype],
                        split_dependent=case.split_dependent,
                    )


def summary(measurements: Iterable[Measurement]) -> Table:
    """Return a table with a row per loss and dtype: the worst errors, their split × ranks, the verdict."""
    worst: dict[tuple[str, str], Measurement] = {}
    for m in measurements:
        seen = worst.setdefault((m.loss, m.dtype), m)
        if m.error > seen.error:
            worst[m.loss, m.dtype] = m
    loss = Column("loss", overflow="fold")  # a narrow terminal must not cut names to the same beginning
    table = Table(loss, "dtype", "value", "gradient", "worst cut", "verdict")
    table.title = "Largest relative errors"
    table.caption = "worst cut: micro-batches × ranks; by definition: a mean over the local micro-batch"
    for m in worst.values():
        table.add_row(
            m.loss,
            m.dtype,
            f"{m.value_error:.1e}",
            f"{m.gradient_error:.1e}",
            f"{m.split} × {m.dp_size}",
            _verdict(m),
        )
    return table


def own_case(loss_mode: str, loss_agg_mode: str) -> Case:
    """Return the case of a user's own loss, by its names in verl's configuration.

    Raises:
        ValueError: no such loss is registered with verl.
    """
    if loss_mode not in POLICY_LOSS_REGISTRY:
        raise ValueError(
            f"--loss is {loss_mode}, which is not registered; valid are {', '.join(POLICY_LOSS_REGISTRY)}. "
            f"Type: VERL_USE_EXTERNAL_MODULES=<your module> grpo-verl-ext invariance --loss {loss_mode}"
        )
    return Case(loss_mode, loss_mode, loss_agg_mode, MAX_RESPONSE_LENGTH)


def report(*, as_json: bool, include_verl: bool, seed: int, own: Case | None = None) -> bool:
    """Measure and print; return False if one of our losses depends on the split where it must not.

    Args:
        own: a user's loss to measure instead of ours.
    """
    ours = list(measure((*OUR_CASES, *PRESET_CASES) if own is None else (own,), seed=seed))
    verls = list(measure(VERL_CASES, seed=seed)) if include_verl else []
    if as_json:
        rows = [asdict(m) | {"passed": m.passed} for m in ours + verls]
        print(json.dumps(rows, indent=2))
    else:
        print_table(make_console(), summary(ours + verls))
    return all(m.passed for m in ours)


def _verdict(m: Measurement) -> str:
    if m.error <= m.tolerance:
        return "invariant"
    return "by definition" if m.split_dependent else "NOT invariant"


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _relative_error(found: Tensor, expected: Tensor) -> float:
    """max |found − expected| / max |expected|."""
    return float((found - expected).abs().max() / expected.abs().max())
