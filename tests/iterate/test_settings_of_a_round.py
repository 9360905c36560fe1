"""Test seeds, folders and verl's command line of each round."""

from pathlib import Path

import pytest

from grpo_verl_ext.iterate.settings import IterateSettings, PolicySettings, RewardModelSettings, Round


def settings(folder: Path, **reward_model: object) -> IterateSettings:
    return IterateSettings(
        folder=str(folder),
        rounds=3,
        seed=2,
        policy=PolicySettings(overrides=["+algo=grpo", "trainer.test_freq=1"], steps=4),
        reward_model=RewardModelSettings(label="a.b", **reward_model),
    )


def values(this: Round) -> dict[str, str]:
    """verl's last word on each key."""
    return dict(line.lstrip("+").split("=", 1) for line in this.run().arguments())


def test_the_first_round_starts_from_the_users_model_and_asks_no_reward_model(tmp_path: Path) -> None:
    first = values(Round(settings(tmp_path), 1))
    assert "actor_rollout_ref.model.path" not in first
    assert "reward.reward_manager.name" not in first
    assert first["trainer.total_training_steps"] == "4"
    assert first["trainer.test_freq"] == "1", "the user's word against ours"
    assert first["data.seed"] == first["actor_rollout_ref.rollout.seed"] == "2001"


def test_a_later_round_starts_from_policy_and_reward_model_of_the_one_before(tmp_path: Path) -> None:
    second = values(Round(settings(tmp_path, weight=0.5, rule_weight=2.0), 2))
    assert second["actor_rollout_ref.model.path"] == f"{tmp_path}/round-1/model"
    assert second["reward.reward_manager.name"] == "rule_and_model"
    assert second["algorithm.grpo_ext.reward_model.path"] == f"{tmp_path}/round-1/reward_model"
    assert second["algorithm.grpo_ext.reward_model.weight"] == "0.5"
    assert second["algorithm.grpo_ext.reward_model.rule_weight"] == "2.0"
    assert second["data.seed"] == "2002"


def test_a_reward_model_of_the_users_is_asked_in_round_one(tmp_path: Path) -> None:
    first = values(Round(settings(tmp_path, start="org/model"), 1))
    assert first["algorithm.grpo_ext.reward_model.path"] == "org/model"
    second = values(Round(settings(tmp_path, start="org/model"), 2))
    assert second["algorithm.grpo_ext.reward_model.path"] == f"{tmp_path}/round-1/reward_model"


def test_weight_zero_asks_nothing(tmp_path: Path) -> None:
    assert "reward.reward_manager.name" not in values(Round(settings(tmp_path, weight=0.0), 2))


@pytest.mark.parametrize("start", [None, "org/model"])
def test_a_round_with_nothing_to_train_on_passes_the_reward_model_on(
    tmp_path: Path, start: str | None
) -> None:
    two = Round(settings(tmp_path, start=start), 2)
    for number in (1, 2):
        Round(two.settings, number).folder.mkdir()
    two.before.mixture.write_text("{}\n")
    two.mixture.write_text("")
    assert two.reward_model == two.before.reward_model == str(tmp_path / "round-1" / "reward_model")
    two.before.mixture.write_text("")
    assert two.reward_model == start


def test_a_classifier_of_steps_is_asked_for_steps(tmp_path: Path) -> None:
    of_steps = settings(tmp_path, weight=0.5, rule_weight=2.0)
    of_steps.reward_model.label, of_steps.reward_model.step_label = None, "a.b"
    assert "reward.reward_manager.name" not in values(Round(of_steps, 1))
    second = values(Round(of_steps, 2))
    assert second["reward.reward_manager.name"] == "rule_and_model"
    section = "algorithm.grpo_ext.reward_model"
    assert second[f"{section}.path"] == f"{tmp_path}/round-1/reward_model"
    assert (second[f"{section}.weight"], second[f"{section}.rule_weight"]) == ("0.5", "2.0")
