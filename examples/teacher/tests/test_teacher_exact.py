"""Test that GVPO around a teacher is the formula on the whole batch at every cut, with rewards and without.

As `test_gvpo_drift` for the other anchors: float64, verl's FSDP2 workers on 1, 2 and 4 ranks, four updates on
one rollout, a rejected response, a group of one, holes in the masks.
"""

from pathlib import Path
from typing import Any

import fsdp2_ranks
import pytest
import torch
from limits import largest
from processes import SIZES
from rollout_ranks import (
    BETA,
    EPOCHS,
    MINI_BATCH,
    MINI_BATCHES,
    reference,
    relative_error,
    rollout,
    token_log_probs,
    trained,
    variant,
)

F64 = torch.float64
MICRO_BATCH, RANKS = "micro-batch", "ranks"
PLACES = {
    1: {"ones": (1, "forward pass"), "fours": (4, MICRO_BATCH), "dynamic": (None, MICRO_BATCH)},
    2: {"threes": (2, "forward pass"), "pairs": (2, RANKS), "eights": (8, MICRO_BATCH)},
    4: {"ones": (1, "forward pass"), "singles": (1, RANKS), "fours": (4, MICRO_BATCH)},
}
"""Ranks → micro-batches of these rows, and where the mean of a prompt then comes from."""
LENGTHS_WEIGH = ("gvpo_distill", 0.5)
"""The loss that is measured in each place; the others in one."""


def by_the_formula(alpha: float, *, with_rewards: bool) -> dict[str, Any]:
    """1/P Σ 1/(k−1) Σ ½ (β (u_i − ū) − (R_i − R̄))², u_i = |y_i|^(−α) (log π_θ − log π_T)."""
    model, teacher, rows = fsdp2_ranks.tiny_model(), reference(), rollout()
    optimiser = torch.optim.AdamW(model.parameters(), lr=fsdp2_ranks.LEARNING_RATE, weight_decay=0.01)
    gradients, losses = [], []
    for prompts in MINI_BATCHES * EPOCHS:
        loss = torch.zeros((), dtype=F64)
        for prompt in prompts:
            own = [r for r in rows.values() if r["uid"] == f"prompt{prompt}" and r["response_mask"].any()]
            if len(own) < 2:
                continue
            u = []
            for row in own:
                mask = row["response_mask"]
                apart = token_log_probs(model, row) - token_log_probs(teacher, row).detach()
                u.append(int(mask.sum()) ** -alpha * (apart * mask).sum())
            distance = BETA * (torch.stack(u) - torch.stack(u).mean())
            if with_rewards:
                rewards = torch.stack([row["rm_scores"].sum() for row in own]).double()
                distance = distance - (rewards - rewards.mean())
            loss = loss + 0.5 * distance.square().sum() / (len(own) - 1) / MINI_BATCH
        optimiser.zero_grad()
        loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        losses.append(loss.item())
        optimiser.step()
    return {"gradients": gradients, "losses": losses}


@pytest.mark.parametrize("dp_size", SIZES)
def test_four_updates_around_a_teacher(dp_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [("gvpo_distill", 0), ("gvpo_distill", 0.5), ("gvpo", 0), ("gvpo", 1)]
    places = [*PLACES[dp_size].items()]
    chosen = [(place, LENGTHS_WEIGH) for place in places] + [(places[0], loss) for loss in losses]
    variants = {
        f"{name}, {algo}, α {alpha}": variant(
            rows, source, algo=algo, anchor="teacher", options={"gvpo_alpha": alpha}
        )
        for (name, (rows, source)), (algo, alpha) in chosen
    }
    results = trained(tmp_path, monkeypatch, dp_size, variants)
    wanted = {(algo, alpha): by_the_formula(alpha, with_rewards=algo == "gvpo") for algo, alpha in losses}
    for name, result in results.items():
        expected = wanted[variants[name]["algo"], variants[name]["options"]["gvpo_alpha"]]
        errors = [
            relative_error(*pair) for pair in zip(result["gradients"], expected["gradients"], strict=True)
        ]
        assert largest(errors) <= 1e-12, (name, errors)
        assert result["metrics"]["actor/gvpo_loss"] == pytest.approx(expected["losses"], rel=1e-12), name
    assert relative_error(wanted["gvpo", 0]["gradients"][0], wanted["gvpo_distill", 0]["gradients"][0]) > 0.01
