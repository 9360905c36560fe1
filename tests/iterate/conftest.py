"""Settings of small rounds, and what `examples/iterate_gsm8k.sh` sets for its own."""

from pathlib import Path

import pytest

from grpo_verl_ext.iterate.settings import IterateSettings, PolicySettings, RewardModelSettings


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes with eight accelerators each."""
    sizes = {"N_GPUS": "8", "N_NODES": "2"}
    for name, value in {"MODEL": "org/model", "DATA": "/data", **sizes}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def settings(tmp_path: Path):
    """Makes those of two rounds with more overrides, and values of the reward model."""

    def make(*overrides: str, **reward_model: object) -> IterateSettings:
        return IterateSettings(
            folder=str(tmp_path),
            rounds=2,
            seed=2,
            policy=PolicySettings(
                overrides=["+algo=grpo", "actor_rollout_ref.rollout.name=vllm", *overrides], steps=4
            ),
            reward_model=RewardModelSettings(
                **{"label": "grpo_verl_ext.rewards.rules.correctness", **reward_model}
            ),
        )

    return make
