"""Settings of small rounds, and what `examples/iterate_gsm8k.sh` sets for its own."""

from pathlib import Path

import pytest

from grpo_verl_ext.iterate.settings import IterateSettings, PolicySettings, RewardModelSettings


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes with eight accelerators each."""
    for word in ("MODEL=org/model", "DATA=/data", "N_GPUS=8", "N_NODES=2"):
        monkeypatch.setenv(*word.split("="))


@pytest.fixture
def settings(tmp_path: Path):
    """Makes those of rounds with more overrides, and values of the reward model."""

    def make(*overrides: str, rounds: int = 2, steps: int = 4, **reward_model: object) -> IterateSettings:
        words = ["+algo=grpo", "actor_rollout_ref.rollout.name=vllm", *overrides]
        reward = {"label": "grpo_verl_ext.rewards.rules.correctness", **reward_model}
        parts = {"policy": PolicySettings(words, steps), "reward_model": RewardModelSettings(**reward)}
        return IterateSettings(folder=str(tmp_path), rounds=rounds, seed=2, **parts)

    return make
