"""Test the temperature that makes a start a standard one."""

import math
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_verl_ext.tasks.chain_sum import model as standard_start
from grpo_verl_ext.tasks.chain_sum.model import COLDEST, HOTTEST, standardise


def logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.arange(97, 117).view(2, 10)).logits


@pytest.fixture
def model_folder(tmp_path, tiny_prepared):
    return shutil.copytree(tiny_prepared.folder / "model", tmp_path / "model")


def share_of(monkeypatch, share):
    """Let the share of right answers be a function of the temperature."""
    tried = []

    def accuracy(*_paths, temperature, **_sizes):
        tried.append(temperature)
        return share(temperature)

    monkeypatch.setattr(standard_start, "accuracy", accuracy)
    return tried


def test_the_temperature_that_gives_a_quarter_is_found_and_divides_the_logits(model_folder, monkeypatch):
    # A quarter at τ = 1.4.
    tried = share_of(monkeypatch, lambda temperature: 1 / (1 + 3 * (temperature / 1.4) ** 4))
    before = logits(model_folder)
    found = standardise(model_folder, model_folder, n=9, max_response_tokens=44)
    # The share's slope there is −0.75 by ln τ, so 0.01 of it are 1.4 % of τ.
    assert found == pytest.approx(1.4, rel=0.014)
    assert found == tried[-1]
    assert torch.allclose(logits(model_folder), before / found, rtol=0, atol=1e-5 * before.abs().max())


@pytest.mark.parametrize(("share", "end"), [(0.1, COLDEST), (0.9, HOTTEST)])
def test_out_of_reach_it_ends_at_the_nearest_end(model_folder, monkeypatch, share, end):
    tried = share_of(monkeypatch, lambda _: share)
    found = standardise(model_folder, model_folder, n=9, max_response_tokens=44)
    # Eight halvings of the range leave a 256th of it.
    assert math.log(found) == pytest.approx(math.log(end), abs=math.log(HOTTEST / COLDEST) / 256 * 1.001)
    assert len(tried) == 8
