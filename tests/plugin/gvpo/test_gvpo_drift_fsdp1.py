"""Test GVPO's updates on one rollout under FSDP1, verl's default: losses equal the paper's formula."""

from pathlib import Path

import fsdp1_ranks
import fsdp2_ranks
import pytest
from test_gvpo_drift import MICRO_BATCH, RANKS, trained, trained_by_the_formula, variant

from grpo_verl_ext.utils.measured import largest


def test_losses_of_four_updates_under_fsdp1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each loss is that of parameters that the updates before it made, whatever their drift comes from."""
    wanted = trained_by_the_formula(fsdp2_ranks.tiny_model())["losses"]
    variants = {"before": variant(2), "ranks": variant(2, RANKS), "micro-batch": variant(4, MICRO_BATCH)}
    for result in trained(tmp_path, monkeypatch, 2, variants, fsdp1_ranks.run_rank).values():
        assert result["engine"] == "OnHost", "an FSDP1 module"
        metrics = result["metrics"]
        assert metrics["actor/gvpo_loss"] == pytest.approx(wanted, rel=1e-12)
        assert metrics["actor/gvpo_drift"][0] == 0
        assert all(drift > 1e-4 for drift in metrics["actor/gvpo_drift"][1:])
        assert largest(metrics["actor/gvpo_weight_sum"]) <= 1e-6
