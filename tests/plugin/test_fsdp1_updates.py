"""Test GVPO's updates on one rollout under FSDP1, verl's default: losses equal the paper's formula."""

from pathlib import Path

import fsdp1_ranks
import fsdp2_ranks
import pytest
from test_group_exactness import trained, trained_by_the_formula, variant


def test_losses_of_four_updates_under_fsdp1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each loss is that of parameters that the updates before it made; their drift is measured in between."""
    wanted = trained_by_the_formula(fsdp2_ranks.tiny_model())["losses"]
    result = trained(tmp_path, monkeypatch, 2, {"pairs": variant(2)}, fsdp1_ranks.run_rank)["pairs"]
    assert result["engine"] == "OnHost", "an FSDP1 module"
    metrics = result["metrics"]
    assert metrics["actor/gvpo_loss"] == pytest.approx(wanted, rel=1e-12)
    assert metrics["actor/gvpo_drift"][0] == 0
    assert min(metrics["actor/gvpo_drift"][1:]) > 1e-4
    assert max(metrics["actor/gvpo_weight_sum"]) <= 1e-6
