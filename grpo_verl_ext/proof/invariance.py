"""Measure how much a loss changes when the mini-batch is cut differently, through verl's own ``ppo_loss``.

A random mini-batch of responses of different lengths is cut into data-parallel ranks and micro-batches in
many ways. For each, value and gradient are combined as verl does (sum over micro-batches, average over ranks)
and compared with the uncut mini-batch on one rank. `COVERED` says what the mini-batch has, `NOT_COVERED` what
it cannot show.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.table import Column, Table
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ALGORITHMS, LOSSES, PRESETS, Algorithm, TokenLoss, verls
from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH
from grpo_verl_ext.catalogue.cispo import CISPO_LOSS
from grpo_verl_ext.catalogue.dppo import DPPO
from grpo_verl_ext.catalogue.dppo_kl import DPPO_KL
from grpo_verl_ext.catalogue.gspo import GSPO_LOSS
from grpo_verl_ext.catalogue.sapo import SAPO_LOSS
from grpo_verl_ext.proof.batch import (
    MAX_RESPONSE_LENGTH,
    ROWS_PER_PROMPT,
    SPLITS,
    RaggedBatch,
    RowNumbers,
    cut,
    micro_batch,
    ragged_batch,
)
from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.utils.documents import numbers_as_text
from grpo_verl_ext.utils.measured import largest
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.loss_config import LossConfig, check_loss
from grpo_verl_ext.verl_plugin.registration import register

_ENTROPY_COEFF = 0.01
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
"""Largest relative error that rounding explains; a wrong denominator is wrong by at least per cents."""

COVERED = (
    "a later update: old_log_prob is not log_prob, and ratios lie inside and outside of the clip range",
    "KL and entropy terms beside the loss",
    "padding, and tokens of a tool at the start, in the middle and at the end of a response",
    "groups of four and of three responses",
)
NOT_COVERED = (
    "the first update, where old_log_prob is log_prob",
    "dropout, rounding in bf16, packing: log-probs are given, no model computes them",
    "advantages and the mean log-ratio of GVPO's groups: given, no trainer or worker computes them",
    "weights and rejection by algorithm.rollout_correction, distillation",
    "other values of a loss's options than a preset's or, with --loss, verl's defaults",
    "metrics",
)


@dataclass(frozen=True)
class Case:
    """A loss as it is chosen in verl's configuration.

    Attributes:
        name: its name in the report.
        loss_mode: ``actor.policy_loss.loss_mode``.
        loss_agg_mode: ``actor.loss_agg_mode``.
        loss_scale_factor: ``actor.loss_scale_factor``.
        numbers: other keys of ``actor`` that the loss reads, such as clip ranges.
        options: the loss's own keys of ``actor.policy_loss``.
        split_dependent: the loss depends on the split by its definition, so a difference is not a failure.
    """

    name: str
    loss_mode: str
    loss_agg_mode: str
    loss_scale_factor: int | None = None
    split_dependent: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def _case_of(algorithm: Algorithm) -> Case:
    """Return an algorithm with its preset's options; a loss of its own with verl's default clip range."""
    preset = PRESETS.get(algorithm.name)
    mode = algorithm.loss_agg_mode
    return Case(
        name=algorithm.name,
        loss_mode=algorithm.loss.name,
        loss_agg_mode=mode,
        loss_scale_factor=MAX_RESPONSE_LENGTH if mode == CONSTANT_LENGTH.mode else None,
        split_dependent=isinstance(algorithm.loss, TokenLoss)
        and algorithm.loss.average is not None
        and algorithm.loss.average.depends_on_split,
        numbers=preset.numbers if preset and algorithm.name not in LOSSES else {},
        options=preset.options if preset else {},
    )


register()  # verl may have been told to load no plugin
catalogue.enter_foreign()
OUR_CASES = tuple(_case_of(each) for each in ALGORITHMS.values() if each.loss.name == each.name in LOSSES)
"""Algorithms with a loss of their own."""
PRESET_CASES = tuple(_case_of(each) for each in ALGORITHMS.values() if each.name not in LOSSES)
"""Presets on a loss of verl's, or on one of ours under another name."""

_NULL = "seq-mean-token-sum-norm"
VERL_CASES = (
    *(
        Case(f"verl {title}", loss.name, mode, factor)
        for title, loss, mode, factor in (
            ("token-mean", verls.VANILLA, "token-mean", None),
            ("seq-mean-token-sum", verls.VANILLA, "seq-mean-token-sum", None),
            ("seq-mean-token-mean", verls.VANILLA, "seq-mean-token-mean", None),
            (f"{_NULL}, null", verls.VANILLA, _NULL, None),
            (f"{_NULL}, set", verls.VANILLA, _NULL, 24),
            (GSPO_LOSS.name, GSPO_LOSS, "seq-mean-token-mean", None),
            ("gspo, token-mean", GSPO_LOSS, "token-mean", None),
            (CISPO_LOSS.name, CISPO_LOSS, "token-mean", None),
            (SAPO_LOSS.name, SAPO_LOSS, "seq-mean-token-mean", None),
            ("gpg", verls.GPG, "token-mean", None),
            (DPPO.loss.name, DPPO.loss, "token-mean", None),
            (DPPO_KL.loss.name, DPPO_KL.loss, "token-mean", None),
            ("geo_mean", verls.GEO_MEAN, "seq-mean-token-mean", None),
            (verls.CLIP_COV.name, verls.CLIP_COV, "token-mean", None),
            (verls.KL_COV.name, verls.KL_COV, "token-mean", None),
        )
    ),
    Case("verl dro", "dro", "seq-mean-token-sum", options={"dro_beta": 0.1}),
)


@dataclass(frozen=True)
class _Measurement:
    """Relative errors of one cut against the uncut mini-batch.

    Attributes:
        constant: no gradient of the loss, without the terms beside it, reaches ``log_prob``.
    """

    loss: str
    dtype: str
    split: str
    dp_size: int
    value_error: float
    gradient_error: float
    tolerance: float
    split_dependent: bool
    constant: bool

    @property
    def error(self) -> float:
        """The larger of the two errors; infinite for NaN and for a constant loss."""
        return math.inf if self.constant else largest((self.value_error, self.gradient_error))

    @property
    def verdict(self) -> str:
        """Why it has passed or failed."""
        if self.constant:
            return "CONSTANT"
        if not math.isfinite(self.error):
            return "NaN or infinite"
        if self.error <= self.tolerance:
            return "invariant"
        return "by definition" if self.split_dependent else "NOT invariant"

    @property
    def passed(self) -> bool:
        """Whether the error is within tolerance, or the loss split-dependent by definition."""
        return self.verdict in ("invariant", "by definition")


def actor_config(case: Case, **overrides: Any) -> ActorConfig:
    """Return verl's actor configuration for a case, with the KL term on."""
    options: dict[str, Any] = {
        "strategy": "fsdp",
        "rollout_n": ROWS_PER_PROMPT,
        "ppo_micro_batch_size_per_gpu": 1,
        "policy_loss": LossConfig(loss_mode=case.loss_mode, **case.options),
        "loss_agg_mode": case.loss_agg_mode,
        "loss_scale_factor": case.loss_scale_factor,
        "use_kl_loss": True,
        "kl_loss_coef": 0.04,
    }
    return ActorConfig(**{**options, **case.numbers, **overrides})


def value_and_gradient(
    config: ActorConfig, mini_batch: RaggedBatch, ranks: list[list[RowNumbers]]
) -> tuple[Tensor, Tensor]:
    """Return value () and gradient (all tokens,) of the mini-batch, combined from its parts as verl does.

    With an entropy term, the gradient with respect to the entropies follows: (twice all tokens,).
    """
    mini_batch, with_entropy = mini_batch.with_fresh_gradients(), config.entropy_coeff != 0
    value = torch.zeros((), dtype=mini_batch.log_prob[0].dtype)
    for rows in (rows for rank in ranks for rows in rank):
        model_output, data = micro_batch(mini_batch, rows, len(ranks), with_entropy=with_entropy)
        statistic = mini_batch.statistic(config, rows)
        with wire.GROUPS.set(mini_batch.groups(rows)), wire.STATISTIC.set(statistic):
            loss, _ = ppo_loss(config, model_output, data)
        if loss.requires_grad:
            (loss / len(ranks)).backward()
        value += loss.detach() / len(ranks)
    leaves = mini_batch.log_prob + (mini_batch.entropy if with_entropy else [])
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return value, torch.cat(gradients)


def measure(
    cases: Iterable[Case] = OUR_CASES,
    dtypes: Iterable[torch.dtype] = (torch.float32, torch.float64),
    dp_sizes: tuple[int, ...] = (1, 2, 4),
    seed: int = 0,
) -> Iterator[_Measurement]:
    """Compare each case × dtype × split × number of ranks with the uncut mini-batch of the same dtype.

    Raises:
        ValueError: there is nothing to measure.
    """
    cases, dtypes = tuple(cases), tuple(dtypes)
    if not (cases and dtypes and dp_sizes):
        raise ValueError(f"nothing to measure: {len(cases)} losses, dtypes {dtypes}, ranks {dp_sizes}")
    for dtype in dtypes:
        mini_batch = ragged_batch(dtype, seed)
        for case in cases:
            constant = is_constant(case, mini_batch)
            for dp_size, split, value_error, gradient_error in _errors(case, mini_batch, dp_sizes):
                yield _Measurement(
                    loss=case.name,
                    dtype=str(dtype).removeprefix("torch."),
                    split=split,
                    dp_size=dp_size,
                    value_error=value_error,
                    gradient_error=gradient_error,
                    tolerance=TOLERANCE[dtype],
                    split_dependent=case.split_dependent,
                    constant=constant,
                )


def is_constant(case: Case, mini_batch: RaggedBatch) -> bool:
    """Return whether no gradient of the loss alone reaches a log-prob of the uncut mini-batch."""
    alone = actor_config(case, use_kl_loss=False)
    _, gradient = value_and_gradient(alone, mini_batch, cut(mini_batch.lengths, "whole", 1))
    return not gradient.any()


def _errors(
    case: Case, mini_batch: RaggedBatch, dp_sizes: Iterable[int]
) -> Iterator[tuple[int, str, float, float]]:
    """Return number of ranks, split, and the errors of value and gradient, with KL and entropy terms.

    Tokens' losses can cancel in a value, and rounding is then large beside it. Its scale is at least Σ |g|,
    the sum of the sizes of these losses where they are −ρA.
    """
    terms, lengths = {"entropy_coeff": _ENTROPY_COEFF}, mini_batch.lengths
    value, gradient = value_and_gradient(actor_config(case, **terms), mini_batch, cut(lengths, "whole", 1))
    scales = torch.maximum(value.abs(), gradient.abs().sum()), gradient.abs().max()
    for dp_size in dp_sizes:
        for split in SPLITS:
            config = actor_config(case, use_dynamic_bsz=split == "dynamic", **terms)
            found = value_and_gradient(config, mini_batch, cut(lengths, split, dp_size))
            columns = zip(found, (value, gradient), scales, strict=True)
            # NaN where one of them has it, or the scale is 0.
            value_error, gradient_error = (float((a - b).abs().max() / scale) for a, b, scale in columns)
            yield dp_size, split, value_error, gradient_error


def summary(measurements: Iterable[_Measurement]) -> Table:
    """Return a table with a row per loss and dtype: the worst errors, their split × ranks, the verdict."""
    worst: dict[tuple[str, str], _Measurement] = {}
    for m in measurements:
        seen = worst.setdefault((m.loss, m.dtype), m)
        if m.error > seen.error:
            worst[m.loss, m.dtype] = m
    loss = Column("loss", overflow="fold")  # a narrow terminal must not cut names to the same beginning
    table = Table(loss, "dtype", "value", "gradient", "worst cut", "verdict")
    table.title = "Largest relative errors"
    table.caption = (
        "worst cut: micro-batches × ranks; by definition: a mean over the local micro-batch; "
        "CONSTANT: without KL and entropy terms no gradient reaches log_prob"
    )
    for m in worst.values():
        table.add_row(
            m.loss,
            m.dtype,
            f"{m.value_error:.1e}",
            f"{m.gradient_error:.1e}",
            f"{m.split} × {m.dp_size}",
            m.verdict,
        )
    return table


def own_case(
    loss_mode: str | None, loss_agg_mode: str | None = None, loss_scale_factor: int | None = None
) -> Case | None:
    """Return the case of a user's own loss, by its names in verl's configuration; None without a loss.

    Args:
        loss_agg_mode: None for verl's default, ``token-mean``; ``loss_scale_factor`` likewise.

    Raises:
        ValueError: no such loss is registered with verl, or a training would refuse the configuration.
    """
    if loss_mode is None:
        options = {"--loss-agg-mode": loss_agg_mode, "--loss-scale-factor": loss_scale_factor}
        for option, value in options.items():
            if value is not None:
                raise ValueError(
                    f"{option} is {value}, but presets have their own; valid is the option together with "
                    f"--loss. Type: grpo-verl-ext invariance --loss <name> {option} {value}"
                )
        return None
    if loss_mode not in POLICY_LOSS_REGISTRY:
        raise ValueError(
            f"--loss is {loss_mode}, which is not registered; valid are {', '.join(POLICY_LOSS_REGISTRY)}. "
            f"Type: VERL_USE_EXTERNAL_MODULES=<your module> grpo-verl-ext invariance --loss {loss_mode}"
        )
    own = PRESETS[loss_mode].options if loss_mode in PRESETS else {}
    case = Case(loss_mode, loss_mode, loss_agg_mode or "token-mean", loss_scale_factor, options=own)
    config = actor_config(case)
    if loss_mode in LOSSES:
        check_loss(LOSSES[loss_mode], config)
    return case


def report_invariance(*, as_json: bool, include_verl: bool, seed: int, own: Case | None = None) -> bool:
    """Measure and print; return False if one of our losses fails, as `_Measurement.passed` says.

    Args:
        own: a user's loss to measure instead of ours.

    Raises:
        ValueError: there is nothing to measure.
    """
    ours = list(measure((*OUR_CASES, *PRESET_CASES) if own is None else (own,), seed=seed))
    there = [case for case in VERL_CASES if case.loss_mode in POLICY_LOSS_REGISTRY]
    verls = list(measure(there, seed=seed)) if include_verl else []
    passed = all(m.passed for m in ours)
    if as_json:
        rows = [asdict(m) | {"verdict": m.verdict, "passed": m.passed} for m in ours + verls]
        content = {"passed": passed, "covered": COVERED, "not_covered": NOT_COVERED, "measurements": rows}
        print(numbers_as_text(content), end="")
    else:
        console = make_console()
        print_table(console, summary(ours + verls))
        for name, lines in (("Covered", COVERED), ("Not covered", NOT_COVERED)):
            console.print("\n- ".join([f"{name}:", *lines]))
    return passed
