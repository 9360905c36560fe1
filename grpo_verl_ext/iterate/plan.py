"""Where a round keeps its parts, and what it tells verl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grpo_verl_ext.iterate.settings import IterateSettings
from grpo_verl_ext.runs.verl_run import VerlRun, hydra_value

SEEDS_PER_RUN = 1000
"""Rounds of two runs with different seeds share no seed below so many rounds."""

SECTION = "algorithm.grpo_ext.reward_model"


@dataclass(frozen=True)
class Round:
    """Round ``number`` ≥ 1 of a run."""

    settings: IterateSettings
    number: int

    @property
    def before(self) -> Round:
        """The round before this one."""
        return Round(self.settings, self.number - 1)

    @property
    def seed(self) -> int:
        """Decides the order of prompts, sampling, pairs and the reward model's training."""
        return self.settings.seed * SEEDS_PER_RUN + self.number

    @property
    def folder(self) -> Path:
        """Everything of this round."""
        return Path(self.settings.folder) / f"round-{self.number}"

    @property
    def rollouts(self) -> Path:
        """verl's dump."""
        return self.folder / "rollouts"

    @property
    def model(self) -> Path:
        """The policy after this round, as a Hugging Face folder."""
        return self.folder / "model"

    @property
    def training_pairs(self) -> Path:
        """This round's own pairs."""
        return self.folder / "pairs.jsonl"

    @property
    def mixture(self) -> Path:
        """Them and the replayed ones: what the reward model was trained on."""
        return self.folder / "mixture.jsonl"

    @property
    def held_out_pairs(self) -> Path:
        """This round's pairs that no training sees."""
        return self.folder / "held_out.jsonl"

    @property
    def own_reward_model(self) -> Path:
        """The reward model after this round, if there was something to train it on."""
        return self.folder / "reward_model"

    @property
    def reward_model(self) -> str | None:
        """The newest reward model after this round; after round 0 ``reward_model.start``."""
        if self.number == 0:
            return self.settings.reward_model.start
        nothing_to_train_on = self.mixture.exists() and self.mixture.stat().st_size == 0
        return self.before.reward_model if nothing_to_train_on else str(self.own_reward_model)

    def overrides(self) -> list[str]:
        """verl's command line: the user's, then the policy and the reward model of the round before."""
        return [
            f"trainer.save_freq={self.settings.policy.save_freq}",
            f"trainer.test_freq={self.settings.policy.steps}",
            "trainer.max_actor_ckpt_to_keep=1",
            *self.settings.policy.overrides,
            f"trainer.rollout_data_dir={hydra_value(self.rollouts.resolve())}",
            f"data.seed={self.seed}",
            f"++actor_rollout_ref.rollout.seed={self.seed}",
            *self._policy_overrides(),
            *self._reward_overrides(),
        ]

    def run(self) -> VerlRun:
        """The policy's training."""
        return VerlRun(self.folder / "policy", self.overrides(), self.settings.policy.steps)

    def _policy_overrides(self) -> list[str]:
        # The reference is loaded from the same folder: each round begins with π_ref = π_θ.
        return (
            []
            if self.number == 1
            else [f"actor_rollout_ref.model.path={hydra_value(self.before.model.resolve())}"]
        )

    def _reward_overrides(self) -> list[str]:
        asked, reward = self.before.reward_model, self.settings.reward_model
        if asked is None or reward.weight == 0:
            return []
        own = self.number > 1 and asked != self.settings.reward_model.start
        path = hydra_value(Path(asked).resolve() if own or Path(asked).exists() else asked)
        weights = [
            "reward.reward_manager.name=rule_and_model",
            f"++{SECTION}.weight={reward.weight}",
            f"++{SECTION}.rule_weight={reward.rule_weight}",
        ]
        if reward.served == "server":
            return [*weights, "reward.reward_model.enable=true", f"reward.reward_model.model_path={path}"]
        return [*weights, f"++{SECTION}.path={path}"]
