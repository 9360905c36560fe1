"""Test the part that all frameworks share: batch, papers' gradients, harness, comparison, page, command.

Not covered: that an adapter calls its framework well, which its row in docs/conformance.md shows.
"""

import copy
import json
import math
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.conformance import __main__ as command
from benchmarks.conformance import comparison, harness
from benchmarks.conformance.adapter import Row, Task
from benchmarks.conformance.adapters.stubs import stub
from benchmarks.conformance.batch import CUTS, GROUP_SIZE, REWARDS, Batch, batches, rank_rows
from benchmarks.conformance.frameworks import FRAMEWORKS
from benchmarks.conformance.oracle import ALGORITHMS, ESTIMATORS, KL_COEF, kl
from benchmarks.conformance.page import page
from grpo_verl_ext.catalogue import PRESETS
from grpo_verl_ext.utils.measured import largest

KEPT = json.loads(command.RESULTS.read_text())
BATCHES = batches()


# The batch


def test_the_batch_is_the_one_of_the_page() -> None:
    ragged, masked = BATCHES["ragged"], BATCHES["masked"]
    assert (len(ragged), int(ragged.mask.sum()), int(ragged.present.sum())) == (16, 224, 228)
    assert (ragged.lengths[0], max(ragged.lengths)) == (2, 29)
    assert int(masked.mask.sum()) == 224 - 12
    assert not (masked.mask.any(1)).all()
    # Group-normalised: the advantages of a group add up to 0.
    advantages = ragged.advantages[:, 0].reshape(-1, GROUP_SIZE)
    assert np.abs(advantages.sum(1)).max() < 1e-14
    # and have the std 1, with n − 1: their squares add up to 3.
    np.testing.assert_allclose((advantages**2).sum(1), 3, rtol=1e-14, equal_nan=False)


def test_some_tokens_lie_outside_of_every_clip_range() -> None:
    ratio = np.exp(BATCHES["ragged"].log_prob - BATCHES["ragged"].old_log_prob)[BATCHES["ragged"].mask > 0]
    assert ratio.min() < 1 - 0.2
    assert ratio.max() > 1 + 0.5


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_every_row_is_in_one_micro_batch_of_one_rank(cut: str, world_size: int) -> None:
    lengths = BATCHES["ragged"].lengths
    parts = [CUTS[cut](rank_rows(16, rank, world_size), lengths) for rank in range(world_size)]
    assert sorted(row for rank in parts for part in rank for row in part) == list(range(16))
    if cut == "tokens":
        assert all(sum(lengths[row] for row in part) <= 64 for rank in parts for part in rank)


def test_the_cut_by_tokens_fills_micro_batches_of_64_tokens() -> None:
    # Longest first: 29 + 26 + 9 | 25 + 23 + 16 | 20 + 18 + 14 + 12 | 11 + 8 + 7 + 5 + 3 + 2.
    assert CUTS["tokens"](list(range(16)), BATCHES["ragged"].lengths) == [
        [1, 9, 10],
        [15, 6, 11],
        [12, 3, 7, 13],
        [4, 14, 2, 5, 8, 0],
    ]


def test_a_group_is_whole_on_one_rank() -> None:
    """Else a framework that counts a prompt's tokens on each rank would be blamed for the cut."""
    assert [rank_rows(16, rank, 2) for rank in (0, 1)] == [list(range(8)), list(range(8, 16))]


def test_a_batch_is_read_as_it_was_written(tmp_path: Path) -> None:
    BATCHES["ragged"].save(tmp_path / "ragged.npz")
    read = Batch.load(tmp_path / "ragged.npz")
    assert (read.log_prob == BATCHES["ragged"].log_prob).all()
    assert read.select([0, 2], trim=True).mask.shape == (2, 7)


# The papers' gradients, against autograd of losses written response by response


def tensors(batch: Batch) -> dict[str, Tensor]:
    return {
        name: torch.tensor(getattr(batch, name)) for name in ("old_log_prob", "ref_log_prob", "advantages")
    }


def clip(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


Response = tuple[Tensor, Tensor, Tensor]
"""Ratios, advantages and log-probs of the tokens that count."""


def paper_loss(algorithm: str, reading: str, batch: Batch, log_prob: Tensor) -> Tensor:
    of = tensors(batch)
    kept = [row > 0 for row in torch.tensor(batch.mask)]
    ratio = (log_prob - of["old_log_prob"]).exp()
    responses = [
        (ratio[i][keep], of["advantages"][i][keep], log_prob[i][keep]) for i, keep in enumerate(kept)
    ]
    low, high = ALGORITHMS[algorithm].clip_low, ALGORITHMS[algorithm].clip_high
    if reading in CLIPPED or algorithm in CLIPPED:
        losses = [clip(r, a, low, high) for r, a, _ in responses]
        return CLIPPED[reading if reading in CLIPPED else algorithm](losses)
    if algorithm in SEQUENCES:
        present = [response for response in responses if len(response[0])]
        factor = SEQUENCES[algorithm]
        return sum(factor(r) * clip(r.log().mean().exp(), a[0], low, high) for r, a, _ in present) / 16
    if algorithm in WEIGHTS:
        weights = [WEIGHTS[algorithm](r.detach(), a) for r, a, _ in responses]
        return -torch.cat([w * a * lp for w, (_, a, lp) in zip(weights, responses, strict=True)]).mean()
    tokens = [torch.cat(each) for each in zip(*responses, strict=True)]
    return (dppo_loss if algorithm.startswith("dppo") else covariance_loss)(algorithm, *tokens)


CLIPPED: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "grpo": lambda losses: sum(loss.mean() for loss in losses if len(loss)) / 16,
    "dr_grpo": lambda losses: sum(loss.sum() for loss in losses) / (16 * 32),
    "mini-batch": lambda losses: torch.cat(losses).mean(),
    "per prompt": lambda losses: sum(torch.cat(losses[i : i + 4]).mean() for i in range(0, 16, 4)) / 4,
}
SEQUENCES: dict[str, Callable[[Tensor], int]] = {"gspo": lambda _: 1, "luspo": len}
WEIGHTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cispo": lambda ratio, _: ratio.clamp(max=1.5),
    "vespo": lambda ratio, advantage: vespo_weight(ratio.prod(), advantage[0]) if len(ratio) else ratio,
}


def vespo_weight(ratio: Tensor, advantage: Tensor) -> Tensor:
    """φ(W) = W^k e^{λ(1 − W)} with the authors' k and λ: 2 and 3 for A ≥ 0, 3 and 2 for A < 0."""
    k, decay = (2, 3) if advantage >= 0 else (3, 2)
    return ratio**k * torch.exp(decay * (1 - ratio))


def dppo_loss(algorithm: str, ratio: Tensor, advantage: Tensor, log_prob: Tensor) -> Tensor:
    """Token by token, arXiv 2602.04879 eq. 13 and 14."""
    total = torch.zeros((), dtype=ratio.dtype)
    for rho, a, own in zip(ratio, advantage, log_prob.exp().detach(), strict=True):
        old = own / rho.detach()
        moved = own - old if a > 0 else old - own
        if algorithm == "dppo":
            keep = moved <= 0.15
        else:
            distance = old * (old / own).log() + (1 - old) * ((1 - old) / (1 - own)).log()
            keep = moved <= 0 or distance <= 0.05
        total = total - (rho * a if keep else 0)
    return total / (16 * 32)


def covariance_loss(algorithm: str, ratio: Tensor, advantage: Tensor, log_prob: Tensor) -> Tensor:
    """arXiv 2505.22617 §4.2."""
    covariance = ((advantage - advantage.mean()) * (log_prob - log_prob.mean())).detach()
    if algorithm == "clip_cov":
        loss = clip(ratio, advantage, 1, 1)
        return torch.where((covariance > 1) & (covariance < 5), loss.detach(), loss).mean()
    chosen = torch.zeros_like(ratio)
    chosen[covariance.topk(int(0.02 * len(ratio))).indices] = 1
    return (-ratio * advantage + chosen * ratio.log().abs()).mean()


@pytest.mark.parametrize("kind", ["ragged", "masked"])
@pytest.mark.parametrize(
    ("algorithm", "reading"), [(name, reading) for name, a in ALGORITHMS.items() for reading in a.readings]
)
def test_the_papers_gradients_are_those_of_the_papers_losses(algorithm: str, reading: str, kind: str) -> None:
    log_prob = torch.tensor(BATCHES[kind].log_prob, requires_grad=True)
    paper_loss(algorithm, reading, BATCHES[kind], log_prob).backward()
    found = ALGORITHMS[algorithm].gradient(reading, BATCHES[kind])
    np.testing.assert_allclose(found, log_prob.grad.numpy(), rtol=1e-12, atol=1e-17, equal_nan=False)


@pytest.mark.parametrize(("algorithm", "tokens"), [("dppo", 4), ("dppo_kl", 3), ("clip_cov", 6)])
def test_some_tokens_of_the_batch_get_no_gradient(algorithm: str, tokens: int) -> None:
    """Else a framework that leaves none out would pass."""
    found = ALGORITHMS[algorithm].gradient("paper", BATCHES["ragged"])
    assert int((found[BATCHES["ragged"].mask > 0] == 0).sum()) == tokens


def test_probabilities_of_the_batch_are_below_1() -> None:
    for values in (
        BATCHES["ragged"].log_prob,
        BATCHES["ragged"].old_log_prob,
        BATCHES["ragged"].ref_log_prob,
    ):
        assert values[BATCHES["ragged"].mask > 0].max() < 0


def on_policy() -> Batch:
    return replace(BATCHES["ragged"], old_log_prob=BATCHES["ragged"].log_prob)


def test_on_policy_the_ratio_is_1_and_so_is_every_kernel() -> None:
    # φ(1) = 1, nothing is masked: VESPO is DAPO, DPPO is Dr. GRPO; LUSPO is Dr. GRPO times L.
    gradient = {name: a.gradient(next(iter(a.readings)), on_policy()) for name, a in ALGORITHMS.items()}
    np.testing.assert_allclose(gradient["vespo"], gradient["dapo"], rtol=1e-12, equal_nan=False)
    for name in ("dppo", "dppo_kl"):
        np.testing.assert_allclose(gradient[name], gradient["dr_grpo"], rtol=1e-12, equal_nan=False)
    np.testing.assert_allclose(gradient["luspo"], 32 * gradient["dr_grpo"], rtol=1e-12, equal_nan=False)


def test_on_policy_kl_cov_is_dapo_as_its_penalty_has_no_slope_at_0() -> None:
    found = ALGORITHMS["kl_cov"].gradient("paper", on_policy())
    np.testing.assert_allclose(
        found, ALGORITHMS["dapo"].gradient("mini-batch", on_policy()), rtol=1e-12, equal_nan=False
    )


def test_kl_cov_penalises_the_four_tokens_of_largest_covariance() -> None:
    # 2 % of 224 tokens; the penalty's slope is ±1, over N.
    batch = BATCHES["ragged"]
    plain = -np.exp(batch.log_prob - batch.old_log_prob) * batch.advantages / 224
    penalty = 224 * (ALGORITHMS["kl_cov"].gradient("paper", batch) - plain)[batch.mask > 0]
    np.testing.assert_allclose(np.sort(np.abs(penalty))[-5:], [0, 1, 1, 1, 1], atol=1e-12, equal_nan=False)


def test_the_kl_term_is_k3_averaged_over_each_response() -> None:
    batch = BATCHES["kl"]
    log_prob = torch.tensor(batch.log_prob, requires_grad=True)
    difference = tensors(batch)["ref_log_prob"] - log_prob
    k3 = difference.exp() - difference - 1
    loss = sum(k3[i][torch.tensor(batch.mask[i]) > 0].mean() for i in range(16)) / 16
    (0.04 * loss).backward()
    np.testing.assert_allclose(kl(batch), log_prob.grad.numpy(), rtol=1e-12, atol=1e-17, equal_nan=False)
    assert KL_COEF == 0.04


# The papers' advantages


def test_maxrls_advantages_by_hand() -> None:
    # K of 4 are right: 4/K − 1 for a right response, −1 for a wrong one, and 0 where none is right.
    third = 1 / 3
    assert ESTIMATORS["maxrl"][1](REWARDS) == pytest.approx(
        [3, -1, -1, -1, 1, 1, -1, -1, -1, third, third, third, 0, 0, 0, 0], abs=1e-15
    )


def test_gdpos_advantages_response_by_response() -> None:
    def normalised(rewards: list[float]) -> list[float]:
        mean, std = statistics.mean(rewards), statistics.stdev(rewards)
        return [(reward - mean) / std if std > 1e-9 else 0.0 for reward in rewards]

    sums = []
    for start in range(0, 16, GROUP_SIZE):
        first, second = (normalised(list(REWARDS[start : start + GROUP_SIZE, m])) for m in (0, 1))
        sums += [a + b for a, b in zip(first, second, strict=True)]
    expected = [each / statistics.stdev(sums) for each in sums]
    np.testing.assert_allclose(
        ESTIMATORS["gdpo"][1](REWARDS), expected, rtol=1e-12, atol=1e-15, equal_nan=False
    )


def test_gdpo_does_not_mind_how_far_a_reward_is_spread() -> None:
    gdpo = ESTIMATORS["gdpo"][1]
    np.testing.assert_allclose(
        gdpo(REWARDS * [1, 100]), gdpo(REWARDS), rtol=1e-12, atol=1e-15, equal_nan=False
    )


def test_advantages_are_compared_with_the_papers() -> None:
    paper = ESTIMATORS["maxrl"][1](REWARDS)
    assert comparison.estimator_cell(list(paper), "maxrl") == {"distance": 0, "scale": 1}
    doubled = comparison.estimator_cell(list(2 * paper), "maxrl")
    assert (doubled["distance"], doubled["scale"]) == (pytest.approx(1), pytest.approx(2))


def test_the_harness_asks_for_the_advantages_of_each_row() -> None:
    adapter = SimpleNamespace(
        ESTIMATORS=(Row("maxrl", "s"),), advantages=lambda row, batch: [len(row.settings)] * len(batch)
    )
    [row] = harness.advantages(adapter, BATCHES["ragged"])  # type: ignore[arg-type]
    assert (row["algorithm"], row["settings"], row["advantages"]) == ("maxrl", "s", [1.0] * 16)
    assert harness.advantages(SimpleNamespace(), BATCHES["ragged"]) == []  # type: ignore[arg-type]


# Toy frameworks


def toy(gradient: Any, *rows: Row) -> ModuleType:
    return SimpleNamespace(ROWS=rows, CUTS=tuple(CUTS), HAS_K3_LOSS=True, gradient=gradient)  # type: ignore[return-value]


def own_rows(task: Task) -> np.ndarray:
    own = np.zeros((len(task.batch), 1))
    own[[row for rows in task.micro_batches for row in rows]] = 1
    return own


def exact(task: Task) -> np.ndarray:
    """The paper's gradient of this rank's rows, times the ranks that will be averaged."""
    if task.kl_coef:
        return kl(task.batch) * own_rows(task) * task.world_size
    algorithm = ALGORITHMS[task.row.algorithm]
    return algorithm.gradient(next(iter(algorithm.readings)), task.batch) * own_rows(task) * task.world_size


def mean_of_means(task: Task) -> np.ndarray:
    """The known fault: the mean over micro-batches of their token means."""
    gradient = np.zeros_like(task.batch.mask)
    for rows in task.micro_batches:
        tokens = task.batch.mask[rows].sum()
        gradient[rows] = -task.batch.advantages[rows] / tokens / len(task.micro_batches)
    return gradient


def measured(
    adapter: ModuleType, of: dict[str, Batch] = BATCHES, ranks: tuple[int, ...] = (1, 2)
) -> list[dict[str, Any]]:
    found = {
        world_size: comparison.averaged(
            [harness.gradients(adapter, of, rank, world_size) for rank in range(world_size)]
        )
        for world_size in ranks
    }
    return [comparison.cells(i, row.algorithm, of, found) for i, row in enumerate(adapter.ROWS)]


def test_a_framework_is_given_the_clip_range_of_the_paper_and_beta_with_the_kl_alone() -> None:
    asked = set()

    def note(task: Task) -> np.ndarray:
        asked.add((task.row.algorithm, task.clip_low, task.clip_high, task.kl_coef))
        return np.zeros_like(task.batch.mask)

    harness.gradients(toy(note, *(Row(name, "noted") for name in ALGORITHMS)), BATCHES)
    assert asked == {
        ("grpo", 0.2, 0.2, 0.0),
        ("grpo", 0.2, 0.2, 0.04),
        ("dapo", 0.2, 0.28, 0.0),  # arXiv 2503.14476, §4.1
        ("dr_grpo", 0.2, 0.2, 0.0),
        ("gspo", 3e-4, 4e-4, 0.0),  # arXiv 2507.18071, §5.1
        ("luspo", 2e-3, 2.5e-3, 0.0),  # arXiv 2602.05261, §5.1
        ("cispo", 1.0, 0.5, 0.0),  # ours; 1 − 1 = 0 bounds nothing
        ("vespo", 0.2, 0.2, 0.0),  # reads none
        ("dppo", 0.15, 0.15, 0.0),  # divergences: the authors' script
        ("dppo_kl", 0.05, 0.05, 0.0),
        ("clip_cov", 1.0, 1.0, 0.0),  # the authors' script
        ("kl_cov", 0.2, 0.2, 0.0),  # reads none
    }


def test_an_exact_framework_passes() -> None:
    rows = measured(toy(exact, *(Row(name, "exact") for name in ALGORITHMS)))
    cells = [cell for row in rows for name, cell in row.items() if "per prompt" not in name]
    assert len(cells) == 2 * len(ALGORITHMS) + 1
    for cell in cells:
        assert cell["error"] < 1e-14
        assert cell["distance"] < 1e-14
        assert cell["scale"] == pytest.approx(1, abs=1e-14)


def test_a_mean_of_micro_batch_means_fails_with_the_right_number() -> None:
    # π = π_old and advantages of 1: every token weighs the same, so the error is that of the denominators.
    # Alone, a token of the shortest response weighs 1/(16·2) instead of 1/224: error 224/32 − 1 = 6.
    on_policy = replace(
        BATCHES["ragged"], old_log_prob=BATCHES["ragged"].log_prob, advantages=BATCHES["ragged"].mask
    )
    [row] = measured(toy(mean_of_means, Row("dapo", "faulty")), {"ragged": on_policy})
    assert row["ragged/mini-batch"]["error"] == pytest.approx(6, rel=1e-12)
    assert row["ragged/mini-batch"]["worst_cut"].startswith("singles")
    assert row["ragged/mini-batch"]["distance"] < 1e-14  # uncut, it is right


def test_a_constant_is_another_thing_than_another_direction() -> None:
    paper = ALGORITHMS["dapo"].gradient("mini-batch", BATCHES["ragged"])
    constant = comparison.cell({"whole × 1": 2.5 * paper}, paper)
    assert (constant.distance, constant.scale) == (pytest.approx(1.5), pytest.approx(2.5))
    other = comparison.cell(
        {"whole × 1": ALGORITHMS["dapo"].gradient("per prompt", BATCHES["ragged"])}, paper
    )
    assert other.distance > 2 * abs(other.scale - 1)


NAN_AT = {
    "one rank's whole mini-batch": lambda task: task.world_size == 1 and len(task.micro_batches) == 1,
    "a cut": lambda task: len(task.micro_batches) == 2,
    "one of the later cuts": lambda task: task.world_size == 2 and len(task.micro_batches) > 3,
}


@pytest.mark.parametrize("where", NAN_AT)
@pytest.mark.parametrize("control", [False, True])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_nan_in_one_entry_of_a_gradient_stops_the_command(where: str, control: bool) -> None:
    def sometimes(task: Task) -> np.ndarray:
        gradient = exact(task)
        gradient[3, 1] = math.nan if NAN_AT[where](task) else gradient[3, 1]
        return gradient

    for name in ("grpo_verl_ext", "trl"):
        [wrong] = faults_of(sometimes, name, control=control)
        assert wrong.startswith(f"{name}, faulty: ragged/mini-batch has NaN"), wrong


@pytest.mark.parametrize("control", [False, True])
def test_a_gradient_of_0_stops_the_command(control: bool) -> None:
    def constant(task: Task) -> np.ndarray:
        return np.zeros_like(task.batch.mask)

    for name in ("grpo_verl_ext", "trl"):
        assert faults_of(constant, name, control=control) == [
            f"{name}, faulty: its gradient is 0: the loss is a constant"
        ]


@pytest.mark.parametrize("control", [False, True])
def test_a_single_cut_is_no_measurement(control: bool) -> None:
    [wrong] = faults_of(exact, "grpo_verl_ext", control=control, cuts=("whole",), ranks=(1,))
    assert (
        wrong
        == "grpo_verl_ext, faulty: ragged/mini-batch has NaN, no gradient, or no other cut than the whole"
    )


def test_an_exact_framework_stops_nothing() -> None:
    assert faults_of(exact, "grpo_verl_ext") == []


def faults_of(
    gradient: Any,
    name: str,
    *,
    control: bool = False,
    cuts: tuple[str, ...] = tuple(CUTS),
    ranks: Any = (1, 2),
) -> list[str]:
    adapter = toy(gradient, Row("dapo", "faulty", control=control))
    adapter.CUTS = cuts
    rows = [
        {"algorithm": "dapo", "settings": "faulty", "control": control, "bug": "", "cells": cells}
        for cells in measured(adapter, ranks=ranks)
    ]
    return comparison.failures({name: {"rows": rows, "estimators": []}})


# What stops the command


def framework(**changes: Any) -> dict[str, Any]:
    row = {"algorithm": "grpo", "settings": "s", "control": False, "bug": ""}
    row |= {"cells": {"ragged/paper": {"error": 0.0}}}
    entry = {"version": "1", "sha256": {"a.py": "x"}, "stand_ins": [], "estimators": []}
    entry["rows"] = [row | changes.pop("row", {})]
    return entry | changes


def test_a_control_that_passes_and_a_row_of_ours_that_depends_on_the_cut_are_named() -> None:
    depends = {"cells": {"ragged/paper": {"error": 0.1}}}
    assert comparison.failures({"trl": framework(), "grpo_verl_ext": framework()}) == []
    assert comparison.failures({"trl": framework(row={"control": True} | depends)}) == []
    [control] = comparison.failures({"trl": framework(row={"control": True})})
    assert control == "trl, s: a failing control, but it does not depend on the cut"
    [ours] = comparison.failures({"grpo_verl_ext": framework(row=depends)})
    assert ours == "grpo_verl_ext, s: depends on the cut (1.0e-01)"


def test_a_known_bug_must_be_found_in_the_old_version_and_not_in_the_new_one() -> None:
    depends = {"cells": {"ragged/paper": {"error": 0.1}}, "bug": "a/b#1"}
    assert comparison.failures({"old": framework(row=depends | {"control": True})}) == []
    assert comparison.failures({"new": framework(row={"bug": "a/b#1"})}) == []
    assert comparison.failures({"old": framework(row={"bug": "a/b#1", "control": True})}) == [
        "old, s: the known bug a/b#1 is not found"
    ]
    assert comparison.failures({"new": framework(row=depends)}) == [
        "new, s: the known bug a/b#1 is there again (1.0e-01)"
    ]


def test_advantages_of_ours_must_be_the_papers() -> None:
    def of(distance: float) -> dict[str, Any]:
        row = {"algorithm": "gdpo", "settings": "s", "note": "", "cell": {"distance": distance, "scale": 1.0}}
        return framework(estimators=[row])

    assert comparison.failures({"trl": of(0.3), "grpo_verl_ext": of(1e-6)}) == []
    assert comparison.failures({"grpo_verl_ext": of(0.3)}) == [
        "grpo_verl_ext, s: advantages differ from the paper (3.0e-01)"
    ]
    assert comparison.failures({"trl": of(math.nan)}) == ["trl, s: advantages differ from the paper (nan)"]


def test_a_millionth_is_rounding_and_two_are_not() -> None:
    """As the page says: “0 is at most 1e-6”."""

    def of(error: float, **changes: Any) -> dict[str, Any]:
        return framework(row={"cells": {"ragged/paper": {"error": error}}} | changes)

    assert comparison.failures({"trl": of(2e-6, control=True), "grpo_verl_ext": of(1e-6)}) == []
    assert comparison.failures({"trl": of(1e-6, control=True), "grpo_verl_ext": of(2e-6)}) == [
        "trl, s: a failing control, but it does not depend on the cut",
        "grpo_verl_ext, s: depends on the cut (2.0e-06)",
    ]


def test_nothing_measured_is_named() -> None:
    assert comparison.failures({}) == ["no framework was measured"]
    assert comparison.failures({"trl": framework() | {"rows": []}}) == ["trl: no row was measured"]
    assert comparison.failures({"trl": framework(row={"cells": {}})}) == ["trl, s: no gradient was measured"]


def test_each_cell_of_ours_is_looked_at() -> None:
    cells = {"ragged/paper": {"error": 0.0}, "kl/paper": {"error": 0.5}}
    assert comparison.failures({"trl": framework(row={"cells": cells})}) == []
    assert comparison.failures({"grpo_verl_ext": framework(row={"cells": cells})}) == [
        "grpo_verl_ext, s: depends on the cut (5.0e-01)"
    ]


def test_drift_is_named() -> None:
    lost = {"file": "b.py", "line": "loss.backward()", "line_number": 0}
    assert comparison.drift(framework(), framework(), "1") == []
    assert comparison.drift(framework(stand_ins=[lost]), framework(sha256={"a.py": "y"}), "2") == [
        "is 1, 2 was tested",
        "b.py has no line “loss.backward()”",
        "a.py has changed",
    ]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the command on a copy of the kept results, with ``run`` in its place; return what it fails with."""
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results.json")
    command.RESULTS.write_text(json.dumps(KEPT))

    def failed_with(run: Callable[..., dict[str, Any]], *names: str) -> str:
        monkeypatch.setattr(command, "run", run)
        monkeypatch.setattr("sys.argv", ["conformance", *names])
        with pytest.raises(SystemExit) as stopped:
            command.main()
        return str(stopped.value)

    return failed_with


def blind(name: str, *_: Any) -> dict[str, Any]:
    """A measurement that sees no dependence on the cut."""
    found = copy.deepcopy(KEPT["frameworks"][name])
    for cell in (cell for row in found["rows"] for cell in row["cells"].values()):
        cell["error"] = 0.0
    return found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (
            "trl_before_6024",
            "loss_type=dapo, steps_per_generation=16: the known bug huggingface/trl#6024 is not found",
        ),
        ("ms_swift_before_10117", "loss_type=dapo: the known bug modelscope/ms-swift#10117 is not found"),
    ],
)
def test_the_command_fails_when_a_known_bug_is_not_found(
    said: Callable[..., str], name: str, found: str
) -> None:
    assert said(blind, name) == f"conformance: {name}, {found}"


def test_the_command_fails_when_a_control_passes(said: Callable[..., str]) -> None:
    assert said(blind, "trl") == (
        "conformance: trl, loss_type=bnpo: a failing control, but it does not depend on the cut"
    )


def test_frameworks_that_are_missing_are_named_in_one_message_and_keep_their_rows(
    said: Callable[..., str],
) -> None:
    def refuse(name: str, *_: Any) -> dict[str, Any]:
        if name == "trl":
            raise command.RunError("did not run: ModuleNotFoundError: No module named 'trl'")
        return KEPT["frameworks"][name] | {"version": "0.0.1"}

    assert said(refuse, "trl", "skyrl") == (
        "conformance: trl: did not run: ModuleNotFoundError: No module named 'trl'\n"
        f"  skyrl is 0.0.1, {FRAMEWORKS['skyrl'].version} was tested"
    )
    assert json.loads(command.RESULTS.read_text())["frameworks"] == KEPT["frameworks"]


def test_a_line_is_looked_up_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = 1\nloss.backward()\n# critic\nloss.backward()\n")
    assert harness.line_number(file, "loss.backward()") == 2
    assert harness.line_number(file, "loss.backward()", after="# critic") == 4
    assert harness.line_number(file, "loss.forward()") == 0
    assert harness.line_number(file, "loss.backward()", after="# actor") == 0


def test_a_stub_fails_on_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "gpu_only", raising=False)
    stub("gpu_only", known=1)
    import gpu_only  # type: ignore[import-not-found]

    assert gpu_only.known == 1
    with pytest.raises(AttributeError, match="unknown"):
        _ = gpu_only.unknown


# The kept results and their page


def test_the_page_is_written_from_the_kept_results() -> None:
    assert page(KEPT) == command.PAGE.read_text()


def test_every_kept_row_has_its_three_numbers() -> None:
    tables = page(KEPT).split("## Advantages")[0]
    rows = re.findall(r"^\| (?!framework|---|line)(.*) \|$", tables, re.MULTILINE)
    for row in rows:
        _, settings, *cells = row.split(" | ")
        if settings != "no such mode":
            assert all(re.fullmatch(r"(\S+ · \S+ · \S+)|no such mode", cell) for cell in cells[:-1]), row
    assert len(rows) >= 20


def test_the_table_of_advantages_has_ours_and_others() -> None:
    section = page(KEPT).split("## Advantages")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (MaxRL|GDPO) \| (.*?) \| `.*` \| (\S+) · (\S+) \|$", section, re.MULTILINE)
    ours = [algorithm for algorithm, title, _, _ in rows if title == "grpo_verl_ext, in verl"]
    assert ours == ["MaxRL", "GDPO"]
    assert len(rows) == len(re.findall(r"^\| (?:MaxRL|GDPO)", section, re.MULTILINE)) >= 5


OLD_AND_NEW = {
    # 16 micro-batches a generation: one is 1/16 of its tokens, and 16 have 16 times the gradient of one.
    "huggingface/trl/issues/6024": (("TRL 1.9.0", "15 · 0.94 · 0.0625"), ("TRL 1.16.0", "0 · 0 · 1")),
    # 1/16 of the gradient in 16 micro-batches: 15/16 = 0.94 is missing; in one micro-batch all is right.
    "modelscope/ms-swift/issues/10117": (("ms-swift 4.5.3", "0.94 · 0 · 1"), ("ms-swift 4.6.0", "0 · 0 · 1")),
}


@pytest.mark.parametrize("address", OLD_AND_NEW)
def test_a_known_bug_has_a_row_of_the_old_version_and_of_the_mended_one(address: str) -> None:
    section = page(KEPT).split("## Known bugs, found again")[1].split("\n## ")[0]
    rows = [row.split(" | ") for row in section.splitlines() if address in row]
    assert {(row[0].removeprefix("| "), row[3]) for row in rows} == set(OLD_AND_NEW[address])
    assert sum(row[-1].startswith("singles") for row in rows) == 1


def test_a_known_bug_is_in_no_table_of_an_algorithm() -> None:
    tables = page(KEPT).split("## Controls that must fail")[0]
    assert "steps_per_generation" not in tables


def test_our_preset_of_every_algorithm_has_a_row_that_equals_its_paper() -> None:
    rows: dict[str, Any] = {}
    for row in KEPT["frameworks"]["grpo_verl_ext"]["rows"]:
        rows.setdefault(row["settings"].split(",")[0], row)
    for name, algorithm in ((name, ALGORITHMS[name]) for name in ALGORITHMS if name in PRESETS):
        reading = next(iter(algorithm.readings))
        for kind in ("ragged", "masked"):
            cell = rows[f"+algo={name}"]["cells"][f"{kind}/{reading}"]
            assert largest([cell["error"], cell["distance"], abs(cell["scale"] - 1)]) < 1e-12, (name, kind)


def test_the_kept_results_are_worth_trusting() -> None:
    frameworks = KEPT["frameworks"]
    assert comparison.failures(frameworks) == []
    assert {"grpo_verl_ext", "verl", "trl", "skyrl", "openrlhf"} <= set(frameworks)
    assert sum(row["control"] for f in frameworks.values() for row in f["rows"]) >= 3
    for name, entry in frameworks.items():
        assert comparison.drift(entry, entry, FRAMEWORKS[name].version) == []
