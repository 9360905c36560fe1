"""Measure how much a loss changes when the mini-batch is split differently, through verl's own functions.

A synthetic rollout is split into data-parallel ranks and micro-batches in many ways. For each, value and
gradient are combined as verl does (sum over micro-batches, average over ranks) and compared with the whole
mini-batch on one rank. `COVERAGE` says what the mini-batch cannot show.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from hydra.errors import InstantiationException
from rich.table import Column, Table
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import ALGORITHMS, LOSSES, PRESETS, Preset, TokenLoss
from grpo_verl_ext.catalogue.averages import AVERAGES
from grpo_verl_ext.catalogue.grpo import GRPO
from grpo_verl_ext.catalogue.requires import OUR_MODES
from grpo_verl_ext.proof import verls_defaults
from grpo_verl_ext.proof.batch import MAX_RESPONSE_LENGTH, SPLITS, Rollout
from grpo_verl_ext.proof.gradient import Training, changed, of_probe
from grpo_verl_ext.proof.reference import VERLS_LOSSES
from grpo_verl_ext.utils.console import make_console
from grpo_verl_ext.utils.documents import numbers_as_text
from grpo_verl_ext.utils.keys import ACTOR, AGGREGATION, ESTIMATOR, LOSS, MODE, POLICY_LOSS, SCALE_FACTOR
from grpo_verl_ext.verl_plugin.loss_config import check_loss
from grpo_verl_ext.verl_plugin.registration import register

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
"""Largest relative error that rounding explains; a wrong denominator is wrong by at least per cents."""
_VANILLA, _NORM = "vanilla", "seq-mean-token-sum-norm"
"""verl's loss that has every average, and the average that divides by ``actor.loss_scale_factor``."""

COVERAGE = {
    "not_covered": (
        "the first update, where old_log_prob is log_prob",
        "dropout, rounding in bf16, packing: log-probs are given, no model computes them",
        "weights and rejection by algorithm.rollout_correction, distillation",
        "other values of a loss's options than a preset's or, with --loss, verl's defaults",
        "metrics",
    ),
}


@dataclass(frozen=True)
class Case:
    """A loss as it is chosen in verl's configuration, and its name in the report."""

    name: str
    loss_mode: str
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: int | None = None
    split_dependent: bool = False
    """The loss depends on the split by its definition, so a difference is not a failure."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key → other values of the configuration."""


_DEFAULT = of_probe(verls_defaults())
register()  # verl may have been told to load no plugin
catalogue.enter_foreign()
_CASES = [
    Case(
        each.name,
        each.loss.name,
        each.loss_agg_mode,
        MAX_RESPONSE_LENGTH if each.loss_agg_mode == _NORM else None,
        isinstance(each.loss, TokenLoss) and bool(each.loss.average and each.loss.average.depends_on_split),
        {ESTIMATOR: each.estimator.name} | PRESETS.get(each.name, Preset()).leaves,
    )
    for each in ALGORITHMS.values()
]
OUR_CASES = tuple(each for each in _CASES if each.loss_mode == each.name in LOSSES)
"""Algorithms with a loss of their own."""
PRESET_CASES = tuple(each for each in _CASES if each.name not in LOSSES)
"""Presets on a loss of verl's, or on one of ours under another name."""
VERL_CASES = (
    *(Case(f"verl {mode}", _VANILLA, mode) for mode in AVERAGES if mode != _NORM),
    Case(f"verl {_NORM}, null", _VANILLA, _NORM),
    Case(f"verl {_NORM}, set", _VANILLA, _NORM, MAX_RESPONSE_LENGTH),
    *(
        Case(f"verl {name}", name, values={f"{POLICY_LOSS}.dro_beta": 0.1})
        for name in VERLS_LOSSES
        if name not in (_VANILLA, "bypass_mode")
    ),
)


class _Measurement(NamedTuple):
    """Relative errors of one split against the whole mini-batch, and what they mean."""

    loss: str
    dtype: str
    split: str
    dp_size: int
    value_error: float
    gradient_error: float
    error: float
    """The larger of the two; infinite for NaN and for a constant loss."""
    verdict: str
    passed: bool


def training_of(case: Case, **actor: Any) -> Training:
    """Return the training of a case, with other values of ``actor``; ValueError where verl refuses one."""
    values = {ESTIMATOR: GRPO.estimator.name, MODE: OUR_MODES[0], **case.values, LOSS: case.loss_mode}
    values |= {AGGREGATION: case.loss_agg_mode, SCALE_FACTOR: case.loss_scale_factor}
    try:
        return Training(changed(_DEFAULT, values | {f"{ACTOR}.{name}": actor[name] for name in actor}))
    except InstantiationException as error:
        raise (error.__cause__ or error) from None


def measure(
    cases: Iterable[Case] = OUR_CASES,
    dtypes: Iterable[torch.dtype] = (torch.float32, torch.float64),
    dp_sizes: tuple[int, ...] = (1, 2, 4),
    seed: int = 0,
) -> Iterator[_Measurement]:
    """Compare each case × dtype × split × number of ranks with the whole mini-batch of the same dtype.

    Tokens' losses can cancel in a value, and rounding is then large beside it. Its scale is at least Σ |g|,
    the sum of the sizes of these losses where they are −ρA.
    """
    cases, dtypes = tuple(cases), tuple(dtypes)
    if not (cases and dtypes and dp_sizes):
        raise ValueError(f"nothing to measure: {len(cases)} losses, dtypes {dtypes}, ranks {dp_sizes}")
    for dtype, case in itertools.product(dtypes, cases):
        rollout = Rollout.synthetic(seed=seed, dtype=dtype)
        alone = training_of(case, use_kl_loss=False, entropy_coeff=0)
        training = training_of(case, use_kl_loss=True, kl_loss_coef=0.04, entropy_coeff=0.01)
        is_constant = not alone.weights(alone.rows(rollout)).any()
        rows = training.rows(rollout)
        whole = rows.value_and_gradient(training.actor)
        scales = torch.maximum(whole[0].abs(), whole[1].abs().sum()), whole[1].abs().max()
        for dp_size, split in itertools.product(dp_sizes, SPLITS):
            found = rows.value_and_gradient(training.actor, rows.cut(split, dp_size))
            # NaN where one of them has it, or the scale is 0.
            columns = zip(found, whole, scales, strict=True)
            of_value, of_gradient = (float((a - b).abs().max() / scale) for a, b, scale in columns)
            error = max(of_value, of_gradient)  # which keeps or drops NaN by its place
            error = math.inf if is_constant or math.isnan(of_value + of_gradient) else error
            verdict = "by definition" if case.split_dependent else "NOT invariant"
            if error <= TOLERANCE[dtype]:
                verdict = "invariant"
            elif not math.isfinite(error):
                verdict = "CONSTANT" if is_constant else "NaN or infinite"
            passed = verdict in ("invariant", "by definition")
            cell = case.name, str(dtype).removeprefix("torch."), split, dp_size
            yield _Measurement(*cell, of_value, of_gradient, error, verdict, passed)


def own_case(
    loss_mode: str | None, loss_agg_mode: str | None = None, loss_scale_factor: int | None = None
) -> Case | None:
    """Return the case of a user's own loss, by its names in verl's configuration; None without a loss.

    An average that is None is verl's default, ``token-mean``.
    """
    if loss_mode is None:
        options = {"--loss-agg-mode": loss_agg_mode, "--loss-scale-factor": loss_scale_factor}
        for option, value in options.items():
            if value is not None:
                seen = f"{option} is {value}, but presets have their own"
                fix = f"grpo-verl-ext invariance --loss <name> {option} {value}"
                raise ValueError(f"{seen}; valid is the option together with --loss. Type: {fix}")
        return None
    if loss_mode not in POLICY_LOSS_REGISTRY:
        seen = f"--loss is {loss_mode}, which is not registered; valid are {', '.join(POLICY_LOSS_REGISTRY)}"
        fix = f"VERL_USE_EXTERNAL_MODULES=<your module> grpo-verl-ext invariance --loss {loss_mode}"
        raise ValueError(f"{seen}. Type: {fix}")
    own = PRESETS[loss_mode].leaves if loss_mode in PRESETS else {}
    case = Case(loss_mode, loss_mode, loss_agg_mode or "token-mean", loss_scale_factor, values=own)
    actor = training_of(case).actor
    if loss_mode in LOSSES:
        check_loss(LOSSES[loss_mode], actor)
    return case


def report_invariance(*, as_json: bool, include_verl: bool, seed: int, own: Case | None = None) -> bool:
    """Measure and print; return False if one of our losses has not `_Measurement.passed`."""
    ours = list(measure((*OUR_CASES, *PRESET_CASES) if own is None else (own,), seed=seed))
    all_ = ours + (list(measure(VERL_CASES, seed=seed)) if include_verl else [])
    passed = all(m.passed for m in ours)
    if as_json:
        content = {"passed": passed, **COVERAGE, "measurements": [m._asdict() for m in all_]}
        print(numbers_as_text(content), end="")
        return passed
    loss = Column("loss", overflow="fold")  # a narrow terminal must not cut names to the same beginning
    names = ("dtype", "value", "gradient", "worst split", "verdict")
    table = Table(loss, *names, title="Largest relative errors")
    table.caption = (
        "worst split: micro-batches × ranks; by definition: a mean over the local micro-batch; "
        "CONSTANT: without KL and entropy terms no gradient reaches log_prob"
    )
    for _, of_loss in itertools.groupby(all_, key=lambda m: (m.loss, m.dtype)):
        m = max(of_loss, key=lambda each: each.error)
        errors = f"{m.value_error:.1e}", f"{m.gradient_error:.1e}"
        table.add_row(m.loss, m.dtype, *errors, f"{m.split} × {m.dp_size}", m.verdict)
    console = make_console()
    console.print(table, "")
    for name, lines in COVERAGE.items():
        console.print("\n- ".join([f"{name.replace('_', ' ').capitalize()}:", *lines]))
    return passed
