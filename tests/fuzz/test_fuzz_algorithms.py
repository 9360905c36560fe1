"""Fuzz the algorithms with tensors of any shape, dtype, mask and magnitude: a result or an error of ours.

``group`` is drawn from `dense_group_ids`: its range is not checked, as that would wait for a GPU. Values are
tested in tests/algorithms.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from mini_batches import actor_config, at_first_update
from strategies import fuzzing, values
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

import grpo_verl_ext as ours
from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms import gvpo
from grpo_verl_ext.algorithms.validation import TensorError
from grpo_verl_ext.proof.invariance import OUR_CASES
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.loss_config import LossConfig, check_loss
from grpo_verl_ext.verl_plugin.wire import BatchSteps

NAN, INF = float("nan"), float("inf")
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
dtypes = st.sampled_from([*FLOATS, torch.int64, torch.uint8, torch.bool])
mask_dtypes = st.sampled_from([torch.bool, torch.int64, torch.uint8, torch.float32])
elements = st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e4, 1e15, -1e15, 1e30, -3e38, NAN, INF, -INF])
modest = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-30, 1e4, -1e4])
sizes = st.integers(0, 4)
counts = st.integers(1, 9)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """(B, T) most of the time."""
    return tuple(draw(st.lists(sizes, min_size=2, max_size=2) | st.lists(sizes, max_size=3)))


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...], of: st.SearchStrategy[float], dtype=dtypes) -> Tensor:
    size = int(np.prod(shape))
    drawn = draw(st.lists(of, min_size=size, max_size=size))
    numbers, kind = torch.tensor(drawn, dtype=torch.float64).reshape(shape), draw(dtype)
    return (numbers if kind.is_floating_point else numbers.nan_to_num(0, 1, 0)).to(kind)


@st.composite
def batches(draw: st.DrawFn, of: st.SearchStrategy[float], fitting: bool) -> dict[str, Tensor]:
    """Four tensors (B, T), a mask, and group ids; of different shapes unless they are to fit."""
    shape = (draw(sizes), draw(st.integers(1, 4))) if fitting else draw(shapes())

    def one(dtype=dtypes) -> Tensor:
        other = not fitting and draw(st.integers(0, 5)) == 0
        return draw(tensors(draw(shapes()) if other else shape, of, dtype))

    def mask() -> Tensor:
        other = not fitting and draw(st.integers(0, 5)) == 0
        return draw(tensors(draw(shapes()) if other else shape, st.sampled_from([0.0, 1.0]), mask_dtypes))

    rows = shape[0] if fitting or (shape and draw(st.booleans())) else draw(sizes)
    names = draw(st.lists(st.sampled_from("abc"), min_size=rows, max_size=rows))
    floats = st.sampled_from([torch.float32, torch.float64]) if fitting else dtypes
    return {
        **{name: one(floats) for name in ("log_prob", "old_log_prob", "advantages", "rewards")},
        "mask": mask(),
        "group": ours.dense_group_ids(np.array(names, dtype=object)),
    }


CLIPS: dict[str, Any] = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}


def one_call(name: str, batch: dict[str, Tensor]) -> Tensor:
    """The loss of an algorithm, with the arguments that it needs."""
    others = {"groups": batch["group"]} if name in ("gvpo", "dapo_per_prompt") else {}
    others |= {"loss_scale_factor": 7} if name == "dr_grpo" else {}
    tokens = (batch["log_prob"], batch["old_log_prob"], batch["mask"])
    return getattr(ours.losses, name)(*tokens, advantages=batch["advantages"], **others)[0]


def of(function: Callable[..., Tensor], *names: str, **options: float) -> Callable[..., Tensor]:
    return lambda batch: function(*(batch[name] for name in names), **options)


RATIO = ("log_prob", "old_log_prob", "mask")
SURROGATE = ("log_prob", "old_log_prob", "advantages", "mask")
SOFT = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}
FUNCTIONS = {
    **{each.__name__: of(each, *RATIO) for each in (ours.k1, ours.k2, ours.k3)},
    "with_k2_gradient": of(ours.with_k2_gradient, "rewards", *RATIO),
    "clipped_surrogate": of(ours.clipped_surrogate, *SURROGATE, **CLIPS),
    "dual clip": of(ours.clipped_surrogate, *SURROGATE, **CLIPS, clip_ratio_c=3.0),
    "geometric_mean_surrogate": of(
        ours.geometric_mean_surrogate, *SURROGATE, log_clip_low=0.4, log_clip_high=0.4
    ),
    "clip_cov": of(ours.covariance.clip_cov_surrogate, *SURROGATE, "mask", **CLIPS),
    "kl_cov": of(ours.covariance.kl_cov_surrogate, *SURROGATE, "mask", coefficient=1.0),
    "topr": of(ours.off_policy.topr_loss, *SURROGATE),
    "bpo": of(ours.off_policy.bpo_loss, *SURROGATE, **CLIPS, smoothing=0.01, cap=5.0),
    "icepop": of(ours.off_policy.icepop_surrogate, *SURROGATE, "old_log_prob", alpha=0.5, beta=5.0, **CLIPS),
    "ipo": of(ours.off_policy.ipo_surrogate, *SURROGATE, "rewards", eps=0.1, kl_tau=1e-3),
    "klpo": of(ours.regression.klpo_loss, *SURROGATE, beta=0.1, level="sequence"),
    "mirror_descent": of(ours.regression.mirror_descent_loss, *SURROGATE, tau=0.1),
    "vespo": of(ours.vespo.vespo_loss, *SURROGATE, **SOFT),
    "token_mean": lambda b: ours.token_mean(b["rewards"], b["mask"], 0, 2),
    "sequence_mean_token_mean": lambda b: ours.sequence_mean_token_mean(b["rewards"], b["mask"], 4, 2),
    "sequence_mean_constant_length": lambda b: ours.sequence_mean_constant_length(
        b["rewards"], b["mask"], 4, 7.0, 2
    ),
    "prompt_mean": lambda b: ours.prompt_mean(b["rewards"], b["mask"], 4, 2, 2),
    "local_token_mean": lambda b: ours.local_token_mean(b["rewards"], b["mask"], 4, 2),
    **{
        f"outcome_advantages, {baseline.__name__}": lambda b, baseline=baseline: ours.outcome_advantages(
            b["rewards"], b["mask"], b["group"], baseline
        )
        for baseline in (ours.group_scaled, ours.centred, ours.batch_scaled, ours.leave_one_out)
    },
    **{
        baseline.__name__: lambda b, baseline=baseline: baseline(
            b["rewards"].sum(-1) if b["rewards"].dim() else b["rewards"],
            b["group"],
            b["mask"].bool().any(-1) if b["mask"].dim() else b["mask"],
        )
        for baseline in (ours.group_scaled, ours.centred, ours.batch_scaled, ours.leave_one_out)
    },
    "per_prompt_token": of(ours.per_prompt_token, "advantages", "mask", "group"),
    "learnt_from": lambda b: ours.advantages.learnt_from(b["mask"], 2),
    **{
        f"losses.{name}": lambda b, name=name: one_call(name, b)
        for name in ("grpo", "dapo_per_prompt", "dr_grpo", "gvpo", "clip_cov", "kl_cov", "vespo")
    },
    "gvpo.sequence_log_ratio": of(gvpo.sequence_log_ratio, *RATIO),
}


def test_no_public_function_is_forgotten() -> None:
    public = {name for name in ours.__all__ if callable(getattr(ours, name))}
    untried = public - {name.partition(",")[0] for name in FUNCTIONS}
    assert untried == {"compose", "dense_group_ids", "process_advantages"}


FLAT = {name: torch.tensor(0.0) for name in ("log_prob", "old_log_prob", "advantages", "rewards", "mask")}
"""No dimension at all."""
NO_TOKEN = {name: torch.zeros(2, 0) for name in FLAT} | {"group": torch.tensor([0, 0])}
NO_ADVANTAGE = {name: torch.zeros(4, 1) for name in FLAT} | {"advantages": torch.zeros(0, 0)}
FLAGS = {name: torch.ones(1, 2, dtype=torch.bool) for name in FLAT} | {"group": torch.tensor([0])}
OLD_FLAGS = {name: torch.ones(1, 2) for name in FLAT} | {"old_log_prob": torch.ones(1, 2, dtype=torch.bool)}


@pytest.mark.parametrize("name", FUNCTIONS)
@fuzzing(25)
@given(batch=batches(elements, fitting=False))
@example(batch=FLAT | {"group": torch.zeros(0, dtype=torch.int64)})
@example(batch=NO_TOKEN)
@example(batch=NO_ADVANTAGE | {"group": torch.zeros(0, dtype=torch.int64)})
@example(batch=FLAGS)
def test_a_result_or_our_error(name: str, batch: dict[str, Tensor]) -> None:
    try:
        assert isinstance(FUNCTIONS[name](batch), Tensor)
    except TensorError as error:
        assert "valid is" in str(error)


@pytest.mark.parametrize("name", FUNCTIONS)
@fuzzing(25)
@given(batch=batches(modest, fitting=True))
def test_finite_in_finite_out(name: str, batch: dict[str, Tensor]) -> None:
    assert FUNCTIONS[name](batch).isfinite().all()


@pytest.mark.parametrize("baseline", [ours.group_scaled, ours.centred])
@fuzzing(25)
@given(batch=batches(modest, fitting=True), bad=st.sampled_from([NAN, INF, -INF]))
def test_a_bad_reward_spoils_its_group_and_no_other(baseline, batch: dict[str, Tensor], bad: float) -> None:
    rewards, group = batch["rewards"][:, 0], batch["group"]
    member = torch.ones_like(group, dtype=torch.bool)
    spoiled = torch.where((group == 0) & (group.cumsum(0) == 0), bad, rewards)
    found, expected = (baseline(each, group, member)[group != 0] for each in (spoiled, rewards))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@fuzzing(100)
@given(index=values | st.lists(st.text(max_size=2) | st.integers(), max_size=4))
@example(index=None)
@example(index=[["a"], ["b"]])
@example(index=[["a"], ["b", "c"]])
def test_group_ids(index: object) -> None:
    try:
        group = ours.dense_group_ids(index)
    except TensorError as error:
        assert "one id a row" in str(error)
    else:
        assert group.shape == (len(index),)
        assert group.dtype == torch.int64


steps = st.lists(st.tuples(elements, st.integers(-1, 3), st.integers(-1, 4)), max_size=4)
"""Reward, row and end of each."""


@fuzzing(100)
@given(
    batch=batches(elements, fitting=True) | batches(elements, fitting=False),
    steps=steps,
    shorter=st.integers(0, 5).map(lambda number: number == 0),
    dtype=st.sampled_from([torch.int64, torch.int64, torch.int32, torch.float32]),
)
@example(batch=FLAGS, steps=[(1.0, 0, -1)], shorter=False, dtype=torch.int64)
@example(batch=FLAGS, steps=[(1.0, 0, 2)], shorter=False, dtype=torch.int64)
@example(batch=FLAGS, steps=[(1.0, -1, 0)], shorter=False, dtype=torch.int64)
def test_process_advantages(batch: dict[str, Tensor], steps, shorter: bool, dtype: torch.dtype) -> None:
    mask = batch["mask"]
    rewards, rows, ends = (list(column) for column in zip(*steps, strict=True)) if steps else ([], [], [])
    arguments = (
        torch.tensor(rewards[:-1] if shorter else rewards),
        torch.tensor(rows, dtype=dtype),
        torch.tensor(ends, dtype=dtype),
    )
    try:
        result = ours.process_advantages(*arguments, mask, batch["group"])
    except TensorError as error:
        assert "valid is" in str(error)
    else:
        assert result.shape == mask.shape
        assert all(0 <= row < mask.shape[0] for row in rows)
        assert all(0 <= end < mask.shape[1] for end in ends)


# What is registered with verl

OPTIONS = ["scale_rewards", "mask_truncated_completions", "max_response_length", "step_rewards"]
options = st.dictionaries(
    st.sampled_from([*OPTIONS, "ref_model_mixup_alpha", "gvpo_anchor"]),
    values | st.sampled_from(["group", "batch", "none", "ref", True, 2, 10**30]),
    max_size=3,
)
sections = st.none() | st.fixed_dictionaries(
    {}, optional={"grpo_ext": options | values, "norm_adv_by_std_in_grpo": st.booleans()}
)


@pytest.mark.parametrize("name", [*catalogue.ESTIMATORS])
@fuzzing(30)
@given(
    batch=batches(elements, fitting=True) | batches(elements, fitting=False),
    config=sections,
    ids=st.booleans(),
)
@example(batch=FLAGS | {"rewards": torch.tensor([[0, torch.inf]]).half()}, config=None, ids=True)
@example(batch=None, config={"grpo_ext": "abc"}, ids=True)
@example(batch=None, config={"grpo_ext": {"ref_model_mixup_alpha": 10**400}}, ids=True)
@example(
    batch=None,
    config={"grpo_ext": {"mask_truncated_completions": True, "max_response_length": 10**30}},
    ids=True,
)
def test_estimators(name: str, batch: dict[str, Tensor] | None, config, ids: bool) -> None:
    batch = batch or {"rewards": torch.ones(2, 3), "mask": torch.ones(2, 3), "group": torch.tensor([0, 0])}
    steps = BatchSteps(torch.tensor([1.0]), torch.tensor([0]), torch.tensor([0]))
    try:
        with wire.passing(steps=steps, several_rewards=batch["rewards"]):
            advantages, returns = get_adv_estimator_fn(name)(
                batch["rewards"], batch["mask"], index=batch["group"].numpy() if ids else None, config=config
            )
    except (SettingError, TensorError) as error:
        assert str(error)
    except ValueError as error:
        assert str(error).startswith(f"{name}: ")
    else:
        assert advantages.shape == returns.shape == batch["mask"].shape
        assert advantages.isfinite().all()


ACTOR_KEYS = ["clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"]
ACTOR_KEYS += ["loss_scale_factor", "loss_agg_mode"]


@pytest.mark.parametrize("case", OUR_CASES, ids=lambda case: case.name)
@fuzzing(30)
@given(
    batch=batches(elements, fitting=True) | batches(elements, fitting=False),
    changed=st.dictionaries(st.sampled_from(ACTOR_KEYS), values, max_size=2),
    policy_loss=st.dictionaries(
        st.sampled_from(["gvpo_beta", "gvpo_terms", "max_response_length", "off_policy_mask_threshold"]),
        values,
        max_size=2,
    ),
)
@example(batch={name: torch.ones(()) for name in FLAT}, changed={}, policy_loss={})
@example(batch=None, changed={"clip_ratio_low": "0.2"}, policy_loss={})
@example(batch=None, changed={"clip_ratio_c": "3"}, policy_loss={})
@example(batch=None, changed={"clip_ratio_high": 10**400}, policy_loss={})
@example(batch=None, changed={"clip_ratio_high": 10**30, "clip_ratio_c": 10**30}, policy_loss={})
@example(batch=None, changed={"loss_scale_factor": 10**30}, policy_loss={"gvpo_beta": 10**30})
@example(batch=FLAGS, changed={}, policy_loss={})
@example(batch=OLD_FLAGS, changed={}, policy_loss={})
@example(batch=None, changed={"clip_ratio_low": 3.402823466385289e38}, policy_loss={})
@example(batch=None, changed={"clip_ratio": None, "clip_ratio_low": None}, policy_loss={})
@example(batch=None, changed={}, policy_loss={"max_response_length": 10**30})
def test_losses(case, batch: dict[str, Tensor] | None, changed, policy_loss) -> None:
    batch = batch or {name: torch.ones(2, 3) for name in ("log_prob", "old_log_prob", "advantages", "mask")}
    config = actor_config(case)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=4, global_batch_size=4)
    for key, value in changed.items():
        object.__setattr__(config, key, value)
    try:
        options = {"loss_mode": case.loss_mode, "gvpo_beta": 0.1} | policy_loss
        object.__setattr__(config, "policy_loss", LossConfig(**options))
        check_loss(catalogue.LOSSES[case.loss_mode], config)
        with wire.passing(groups=at_first_update(batch["mask"].shape[:1].numel(), config.rollout_n)):
            loss, metrics = get_policy_loss_fn(case.loss_mode)(
                old_log_prob=batch["old_log_prob"],
                log_prob=batch["log_prob"],
                advantages=batch["advantages"],
                response_mask=batch["mask"],
                config=config,
            )
    except (SettingError, TensorError) as error:
        assert str(error)
    else:
        assert loss.shape == ()
        assert all(name.startswith("actor/") for name in metrics)
