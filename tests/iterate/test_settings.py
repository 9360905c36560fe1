"""Test the YAML of ``iterate``, whose wrong values are named, and what each round makes of it."""

from pathlib import Path

import pytest

from grpo_verl_ext.iterate.settings import IterateError, IterateSettings, Round, read_settings

EXAMPLES = Path(__file__).parents[2] / "examples"

SMALL = """
folder: somewhere
rounds: 2
policy: {steps: 3, overrides: [+algo=grpo]}
reward_model: {label: a.b}
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (file := tmp_path / "it.yaml").write_text(SMALL)
    return file


def test_defaults_and_what_wins(written: Path) -> None:
    settings = read_settings(written, ["rounds=5", "reward_model.trainer.learning_rate=1e-3"])
    assert (settings.folder, settings.rounds, settings.seed) == ("somewhere", 5, 1)
    assert settings.policy.overrides == ["+algo=grpo"]
    assert settings.reward_model.replay == 0.1, "arXiv 2402.03300, Algorithm 1: 10 %"
    assert settings.reward_model.trainer == {"learning_rate": 1e-3}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("iterate*.yaml")), ids=lambda file: file.name)
@pytest.mark.usefixtures("eight_gpus")
def test_the_examples_are_read(file: Path) -> None:
    settings = read_settings(file).reward_model
    # rounds that continue another run's reward model replay that run's pairs; else Algorithm 1's share
    assert settings.replay == (0.1 if settings.replay_from is None else 0.9)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("round=3", r"round=3 is not known; valid are folder, rounds, seed, policy, reward_model\. Remove"),
        ("rounds=0", r"rounds is 0; .* greater than or equal to 1\. Type: rounds="),
        ("seed=-1", r"seed is -1; .* 0"),
        ("policy.steps=0", r"policy\.steps is 0"),
        ("reward_model.pairs_per_prompt=0", r"reward_model\.pairs_per_prompt is 0"),
        ("reward_model.replay=1.0", r"reward_model\.replay is 1\.0; .* less than 1"),
        ("reward_model.replay=.nan", r"reward_model\.replay is nan"),
        ("reward_model.held_out=0.0", r"reward_model\.held_out is 0\.0; .* greater than 0"),
        ("reward_model.rule_weight=0.5 reward_model.weight=0", r"is 0\.5, and weight 0\. Type: .*=1\.0$"),
        ("reward_model.rule_weight=0", r"round 1 has no reward\. Type: reward_model\.start="),
        ("reward_model.step_label=a.c", r"either label or step_label"),
        ("reward_model.label=null", r"either label or step_label"),
        ("reward_model.replay=0 reward_model.replay_from=a", r"replay is 0: replay_from is not read"),
    ],
)
def test_a_wrong_value_is_named(written: Path, overrides: str, message: str) -> None:
    with pytest.raises(IterateError, match=message):
        read_settings(written, overrides.split())


def values(of: IterateSettings, number: int) -> dict[str, str]:
    """verl's last word on each key in a round."""
    return dict(line.lstrip("+").split("=", 1) for line in Round(of, number).run().arguments())


SAVED = "policy/checkpoints/global_step_4/actor/huggingface"
MANAGER, MODEL = "reward.reward_manager.name", "algorithm.grpo_ext.reward_model"


def test_the_first_round_starts_from_the_users_model_and_asks_no_reward_model(settings) -> None:
    first = values(settings("trainer.test_freq=1"), 1)
    assert "actor_rollout_ref.model.path" not in first
    assert MANAGER not in first
    assert first["trainer.total_training_steps"] == "4"
    assert first["trainer.test_freq"] == "1", "the user's word against ours"
    assert "hf_model" in first["actor_rollout_ref.actor.checkpoint.save_contents"], "for the next round"
    assert first["data.seed"] == first["actor_rollout_ref.rollout.seed"] == "2001"


@pytest.mark.parametrize("rule", [{}, {"label": None, "step_label": "a.b"}], ids=["responses", "steps"])
def test_a_later_round_starts_from_both_models_of_the_one_before(settings, tmp_path, rule) -> None:
    second = values(settings(weight=0.5, rule_weight=2.0, **rule), 2)
    assert second["actor_rollout_ref.model.path"] == f"{tmp_path}/round-1/{SAVED}"
    assert second[MANAGER] == "rule_and_model"
    assert second[f"{MODEL}.path"] == f"{tmp_path}/round-1/reward_model"
    assert (second[f"{MODEL}.weight"], second[f"{MODEL}.rule_weight"]) == ("0.5", "2.0")
    assert second["data.seed"] == "2002"


def test_a_reward_model_of_the_users_is_asked_in_round_one(settings, tmp_path: Path) -> None:
    first, second = (values(settings(start="org/model"), number) for number in (1, 2))
    assert first[f"{MODEL}.path"] == "org/model"
    assert second[f"{MODEL}.path"] == f"{tmp_path}/round-1/reward_model"
    assert MANAGER not in values(settings(start="org/model", weight=0.0), 2), "weight 0 asks nothing"


@pytest.mark.parametrize("start", [None, "org/model"])
def test_a_round_with_nothing_to_train_on_passes_the_reward_model_on(settings, tmp_path, start) -> None:
    one, two, three = (Round(settings(start=start), number) for number in (1, 2, 3))
    assert three.reward_model_before == str(two.own_reward_model), "the newest"
    for this, mixture in ((one, "{}\n"), (two, "")):
        this.folder.mkdir()
        this.mixture.write_text(mixture)
    ones = str(tmp_path / "round-1" / "reward_model")
    assert (two.reward_model_before, three.reward_model_before) == (ones, ones)
    one.mixture.write_text("")
    assert three.reward_model_before == start
