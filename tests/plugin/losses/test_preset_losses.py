"""Test presets on verl's own losses: by hand, and against TRL on a whole mini-batch.

That they are the same at every cut is tested in test_invariance.py.
"""

import math
from collections import defaultdict
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from mini_batches import actor_config, ragged_batch, value_and_gradient
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn

from grpo_verl_ext.algorithms.mini_batch import MiniBatchRows
from grpo_verl_ext.catalogue import LOSSES
from grpo_verl_ext.proof.batch import MAX_RESPONSE_LENGTH, Rollout
from grpo_verl_ext.proof.invariance import OUR_CASES, PRESET_CASES
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin import wire

F64 = torch.float64
CASES = {case.name: case for case in (*OUR_CASES, *PRESET_CASES)}


def loss_and_gradient(name: str, rows: list[list[tuple[float, float]]], advantages: list[float]):
    """(L, ∂L/∂log π of each token) of rows of (log π, log π_old), one mini-batch on one rank."""
    width = max(map(len, rows))
    mask = torch.tensor([[column < len(row) for column in range(width)] for row in rows])
    padded = torch.tensor([[*row, *[(0.0, 0.0)] * (width - len(row))] for row in rows], dtype=F64)
    log_prob = padded[..., 0].clone().requires_grad_()
    config = actor_config(CASES[name])
    counts = {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(rows)}
    config.global_batch_info.update(counts, loss_scale_factor=config.loss_scale_factor)
    of_tokens = torch.tensor(advantages, dtype=F64).unsqueeze(-1) * mask
    tokens = {"old_log_prob": padded[..., 1], "advantages": of_tokens}
    record = LOSSES.get(config.policy_loss.loss_mode)
    inputs = {}
    if record is not None and record.needs is not None:
        number = torch.arange(len(rows))
        seen = MiniBatchRows(padded[..., 0], *tokens.values(), mask, number, number, seed=0)
        inputs["statistic"] = record.needs.compute(seen, config).broadcast_to(mask.shape)
    with wire.passing(inputs=inputs):
        loss, _ = get_policy_loss_fn(config.policy_loss.loss_mode)(
            log_prob=log_prob, **tokens, response_mask=mask, loss_agg_mode=config.loss_agg_mode, config=config
        )
    loss.backward()
    return loss.item(), [row[keep].tolist() for row, keep in zip(log_prob.grad, mask, strict=True)]


def by_ratio(log_ratio: float, log_prob: float = -1.0) -> tuple[float, float]:
    return log_prob, log_prob - log_ratio


# (rows, advantages, L, gradient)
BY_HAND = {
    # s = e^{3e-4} is inside 1 + 4e-4, where the second is clipped; the third has A < 0 and is not.
    "gspo": (
        [[by_ratio(2e-4), by_ratio(4e-4)], [by_ratio(0.1), by_ratio(0.3)], [by_ratio(1.0)]],
        [1.0, 2.0, -1.0],
        (-math.exp(3e-4) - 2 * 1.0004 + math.e) / 3,
        [[-math.exp(3e-4) / 2 / 3] * 2, [0.0, 0.0], [math.e / 3]],
    ),
    # s = e^{1.5e-3} is inside 1 + 2.5e-3, where the second is clipped; sums over tokens: GSPO's times |o|.
    "luspo": (
        [[by_ratio(1e-3), by_ratio(2e-3)], [by_ratio(0.1), by_ratio(0.3)], [by_ratio(1.0)]],
        [1.0, 2.0, -1.0],
        (-2 * math.exp(1.5e-3) - 2 * 2 * 1.0025 + math.e) / 3,
        [[-math.exp(1.5e-3) / 3] * 2, [0.0, 0.0], [math.e / 3]],
    ),
    # φ(2) = 2² e^{3 (1 − 2)} where A ≥ 0, φ(½) = ½³ e^{2 (1 − ½)} where A < 0; log π = −1. N = 3.
    "vespo": (
        [[by_ratio(math.log(2)), by_ratio(0.0)], [by_ratio(-math.log(2))]],
        [1.0, -1.0],
        (2 * 4 * math.exp(-3) - math.e / 8) / 3,
        [[-4 * math.exp(-3) / 3] * 2, [math.e / 8 / 3]],
    ),
    # verl's dppo_tv and dppo_kl: π_old 0.4 → π 0.5 and 0.6 with A > 0, 0.5 → 0.3 and 0.3 → 0.6 with A < 0.
    # |π − π_old| = 0.2 is over 0.15, and the KL, 0.081 and 0.087, over 0.05; the last token moves against its
    # A, which no mask stops.
    **dict.fromkeys(
        ("dppo", "dppo_kl"),
        (
            [
                [(math.log(0.5), math.log(0.4)), (math.log(0.6), math.log(0.4))],
                [(math.log(0.3), math.log(0.5))],
                [(math.log(0.6), math.log(0.3))],
            ],
            [1.0, -1.0, -1.0],
            (-1.25 * math.log(0.5) + 2 * math.log(0.6)) / 3 / MAX_RESPONSE_LENGTH,
            [[-1.25 / 3 / MAX_RESPONSE_LENGTH, 0.0], [0.0], [2 / 3 / MAX_RESPONSE_LENGTH]],
        ),
    ),
    # Means of log π and A: −1 and 1/3. c = −0.4 · 2/3, 1.4 · 2/3, −1 · −4/3: the last, 1.33, is the only
    # one in (1, 5) and gets nothing; ρ = 5 with A > 0 is beyond the bound of 2. N = 3.
    "clip_cov": (
        [[by_ratio(0.1, -1.4), by_ratio(math.log(5), 0.4)], [by_ratio(0.2, -2.0)]],
        [1.0, -1.0],
        (-math.exp(0.1) - 2) / 3,
        [[-math.exp(0.1) / 3, 0.0], [0.0]],
    ),
    # The same tokens: the last has the largest c and gets |log ρ| = 0.2 more; nothing is clipped.
    "kl_cov": (
        [[by_ratio(0.1, -1.4), by_ratio(math.log(5), 0.4)], [by_ratio(0.2, -2.0)]],
        [1.0, -1.0],
        (-math.exp(0.1) - 5 + math.exp(0.2) + 0.2) / 3,
        [[-math.exp(0.1) / 3, -5 / 3], [(math.exp(0.2) + 1) / 3]],
    ),
    # W = 2 · 4 counts as 1 where A ≥ 0, as does 3 where A < 0; ½ · ½ as ¼. Sums over tokens; log π = −1.
    "topr": (
        [
            [by_ratio(math.log(2)), by_ratio(math.log(4))],
            [by_ratio(math.log(3))],
            [by_ratio(-math.log(2)), by_ratio(-math.log(2))],
        ],
        [2.0, -1.0, -3.0],
        (2 * 2 - 1 - 3 / 4 * 2) / 3,
        [[-2 / 3] * 2, [1 / 3], [3 / 4 / 3] * 2],
    ),
    # τ = 0.1: ½ τ Δ² − A Δ with Δ = 1 + 3, −2; the gradient τ Δ − A at each token.
    "kimi": (
        [[by_ratio(1.0), by_ratio(3.0)], [by_ratio(-2.0)]],
        [0.5, -0.5],
        ((0.05 * 16 - 0.5 * 4) + (0.05 * 4 - 0.5 * 2)) / 2,
        [[(0.4 - 0.5) / 2] * 2, [(-0.2 + 0.5) / 2]],
    ),
    # PPO's loss over tokens; ρ = 5 with A < 0 is beyond the dual clip at 3. N = 3.
    "maxrl": (
        [[by_ratio(0.0), by_ratio(1.0)], [by_ratio(math.log(5))]],
        [3.0, -1.0],
        (-3 - 3 * 1.2 + 3) / 3,
        [[-3 / 3, 0.0], [0.0]],
    ),
    # ρ = 8 counts as 5, ρ = 1/2 as itself: there is no lower bound. N = 3.
    "cispo": (
        [[by_ratio(math.log(8), -0.5), by_ratio(-math.log(2), -2.0)], [by_ratio(math.log(8), -1.0)]],
        [2.0, -1.0],
        (5 * 2 * 0.5 + 0.5 * 2 * 2.0 - 5 * 1.0) / 3,
        [[-10 / 3, -1 / 3], [5 / 3]],
    ),
    # σ(ln 3) = 3/4 at ρ = 1 + ln 3, with slope 4 · 3/4 · 1/4; at ρ = 1 the gate is ½ · 4/τ, with slope 1.
    "sapo": (
        [[by_ratio(math.log(1 + math.log(3))), by_ratio(0.0)], [by_ratio(0.0)]],
        [2.0, -1.0],
        (-(4 * 0.75 * 2 + 4 * 0.5 * 2) / 2 + 2 / 1.05) / 2,
        [[-0.75 * (1 + math.log(3)) * 2 / 2 / 2, -2 / 2 / 2], [1 / 2]],
    ),
    # verl's gpg: −A Σ log π of a response, whatever the ratio.
    "rloo": (
        [[by_ratio(1.0, -0.5), by_ratio(0.0, -2.0)], [by_ratio(-3.0, -1.5)]],
        [1.5, -1.5],
        (1.5 * 2.5 - 1.5 * 1.5) / 2,
        [[-1.5 / 2, -1.5 / 2], [1.5 / 2]],
    ),
    # PPO's loss, no dual clip: ρ = 5 with A < 0 keeps its gradient. N = 3; then a mean per response.
    "lite_ppo": (
        [[by_ratio(0.0), by_ratio(1.0)], [by_ratio(math.log(5))]],
        [1.0, -1.0],
        (-1 - 1.2 + 5) / 3,
        [[-1 / 3, 0.0], [5 / 3]],
    ),
    "ppo_kl": (
        [[by_ratio(0.0), by_ratio(1.0)], [by_ratio(math.log(5))]],
        [1.0, -1.0],
        (-(1 + 1.2) / 2 + 5) / 2,
        [[-1 / 2 / 2, 0.0], [5 / 2]],
    ),
}


@pytest.mark.parametrize(
    ("loss_mode", "what"),
    [("clip_cov_mini_batch", "statistic"), ("kl_cov_mini_batch", "statistic"), ("gvpo", "groups")],
)
def test_a_loss_without_its_statistic_or_groups_is_refused(loss_mode, what):
    """verl's own trainers and workers measure none and pass none."""
    tokens = dict.fromkeys(("log_prob", "old_log_prob", "advantages", "response_mask"), torch.ones(1, 2))
    config = actor_config(CASES[loss_mode.removesuffix("_mini_batch")])
    config.global_batch_info.update(dp_size=1, batch_num_tokens=2, global_batch_size=1)
    with pytest.raises(SettingError, match=rf"{loss_mode} was called without (the )?{what}") as refusal:
        get_policy_loss_fn(loss_mode)(**tokens, loss_agg_mode="token-mean", config=config)
    assert refusal.value.problem.key == "trainer.v1.trainer_mode"


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str) -> None:
    rows, advantages, expected, expected_gradient = BY_HAND[name]
    loss, gradient = loss_and_gradient(name, rows, advantages)
    # verl divides by |o| + 1e-8.
    assert loss == pytest.approx(expected, rel=2e-8)
    for found, wanted in zip(gradient, expected_gradient, strict=True):
        assert found == pytest.approx(wanted, rel=2e-8)


# TRL's own loss, on a trainer that has no more than it reads.

TRLS = {
    "gspo": {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    "luspo": {
        **{"loss_type": "luspo", "importance_sampling_level": "sequence"},
        **{"epsilon_low": 2e-3, "epsilon_high": 2.5e-3},
    },
    "vespo": {"loss_type": "vespo"},
    # TRL's bound is the ratio itself.
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
    "gmpo": {"epsilon_low": 0.4, "epsilon_high": 0.4},
}


@pytest.fixture(scope="module")
def trainers() -> tuple[type, type]:
    """TRL's GRPO and GMPO, imported as without vLLM: it does not know the version of the CPU platform."""
    with pytest.MonkeyPatch.context() as patched:
        available = import_module("trl.import_utils")  # no attribute of TRL's lazy package
        patched.setattr(available, "is_vllm_available", lambda *_, **__: False)
        from trl.experimental.gmpo import GMPOTrainer
        from trl.trainer.grpo_trainer import GRPOTrainer
    return GRPOTrainer, GMPOTrainer


@pytest.mark.parametrize("name", TRLS)
def test_equals_trl_on_the_whole_mini_batch(name: str, trainers: tuple[type, type]) -> None:
    batch = ragged_batch(F64)
    clips = {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4} if name == "gmpo" else {}
    config = actor_config(CASES[name], use_kl_loss=False, **clips)
    value, gradient = value_and_gradient(config, batch, batch.cut("whole", 1))
    trls_value, trls_gradient = by_trl(trainers[name == "gmpo"], TRLS[name], batch)
    assert value.item() == pytest.approx(trls_value, rel=1e-6)
    largest = float(trls_gradient.abs().max())
    torch.testing.assert_close(gradient, trls_gradient, rtol=1e-6, atol=1e-6 * largest)


def by_trl(trainer: type, options: dict[str, object], batch: Rollout) -> tuple[float, Tensor]:
    """As `value_and_gradient`, in one pass of one process."""
    log_prob, mask = batch.log_prob.clone().requires_grad_(), batch.response_mask
    inputs = {
        **dict.fromkeys(("prompt_ids", "prompt_mask", "completion_ids"), torch.zeros_like(mask)),
        "completion_mask": mask,
        "advantages": batch.advantages.sum(1) / mask.sum(1).clamp(min=1),  # one number for all its tokens
        "old_per_token_logps": batch.old_log_prob,
        "num_items_in_batch": mask.sum(),
    }
    arguments = {"delta": None, "steps_per_generation": 1}
    arguments |= {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    arguments |= {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
    fake = SimpleNamespace(
        **{"importance_sampling_level": "token", "loss_type": "grpo", "epsilon_low": 0.2} | options,
        **dict.fromkeys(("use_vllm", "aux_loss_enabled", "_entropy_bonus_enabled"), False),
        **{"beta": 0.0, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None},
        args=SimpleNamespace(**arguments),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x),
        model=SimpleNamespace(training=True),
        get_gamma_weights=trainer.get_gamma_weights,
        current_gradient_accumulation_steps=1,
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_prob, torch.zeros_like(log_prob), None),
        _metrics={"train": defaultdict(list)},
    )
    loss = trainer._compute_loss(fake, fake.model, inputs)
    loss.backward()
    return loss.item(), log_prob.grad[batch.given]
