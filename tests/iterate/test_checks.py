"""Test that ``iterate`` refuses, before the first round, what would fail in it or in the second."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grpo_verl_ext.iterate.checks import (
    check_trainer,
    checked_rule,
    compose_rounds,
    the_rule,
)
from grpo_verl_ext.iterate.examples import Pair, write_examples
from grpo_verl_ext.iterate.settings import (
    IterateError,
    IterateSettings,
    PolicySettings,
    RewardModelSettings,
    read_settings,
)
from grpo_verl_ext.rewards.rules import correctness
from grpo_verl_ext.rewards.steps import compute_score

RULE = "grpo_verl_ext.rewards.rules.correctness"
STEPS_ON = "+algorithm.grpo_ext.step_rewards=true"


def settings(folder: Path, *overrides: str, **reward_model: object) -> IterateSettings:
    return IterateSettings(
        folder=str(folder),
        rounds=2,
        policy=PolicySettings(
            overrides=["+algo=grpo", "actor_rollout_ref.rollout.name=vllm", *overrides], steps=1
        ),
        reward_model=RewardModelSettings(**{"label": RULE, **reward_model}),
    )


def test_the_first_round_is_composed(tmp_path: Path) -> None:
    config = compose_rounds(settings(tmp_path))
    assert config.algorithm.adv_estimator == "grpo_outcome"
    assert config.trainer.total_training_steps == 1


@pytest.mark.usefixtures("eight_gpus")
def test_the_example_for_gpus_composes_in_every_round() -> None:
    example = read_settings(Path(__file__).parents[2] / "examples" / "iterate_gsm8k.yaml")
    config = compose_rounds(example)
    assert (config.trainer.n_gpus_per_node, config.trainer.nnodes) == (8, 2)
    assert config.reward.reward_manager.name == "naive", "round 1 has no reward model yet"
    assert the_rule(example.reward_model)("#### 4", "4") == 1.0


def test_the_examples_of_right_answers_compose_and_fit_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.setenv("START", "3")
    start = read_settings(examples / "iterate_answers_start.yaml", ["seed=3"])
    rounds = read_settings(examples / "iterate_answers.yaml", ["seed=103"])
    assert rounds.reward_model.start == f"{start.folder}/round-1/reward_model"
    assert the_rule(start.reward_model) is the_rule(rounds.reward_model) is correctness
    one = read_settings(examples / "iterate_answers.yaml", ["rounds=1", "policy.steps=16"])
    assert one.policy.steps == rounds.rounds * rounds.policy.steps, "as many samples"

    policy = compose_rounds(start)
    assert policy.trainer.critic_warmup > start.policy.steps, "the policy is not trained"
    judged = compose_rounds(rounds)
    assert judged.task.seed == policy.task.seed == 3
    assert judged.reward.reward_manager.name == "rule_and_model"
    assert judged.algorithm.grpo_ext.reward_model.rule_weight == 0


def test_what_verl_would_refuse(tmp_path: Path) -> None:
    with pytest.raises(IterateError, match=r"policy\.overrides: verl refuses them: .*no_such_key"):
        compose_rounds(settings(tmp_path, "trainer.no_such_key=1"))


def test_what_the_driver_would_refuse(tmp_path: Path) -> None:
    wrong = settings(tmp_path, "+platform=cpu", "actor_rollout_ref.rollout.n=1")
    with pytest.raises(IterateError, match=r"policy\.overrides: group-size is tested with .*n ≥ 2; it is 1"):
        checked_rule(wrong, compose_rounds(wrong))


def test_a_manager_that_a_round_with_a_reward_model_would_replace(tmp_path: Path) -> None:
    """DAPO's own punishes long responses, in round 1 alone."""
    message = r"reward_manager\.name is dapo, but rounds .* Type: reward\.reward_manager\.name=naive, or"
    manager = "reward.reward_manager.name=dapo"
    for reward_model in ({}, {"start": "a/reward/model"}):
        with pytest.raises(IterateError, match=message):
            compose_rounds(settings(tmp_path, manager, **reward_model))
    compose_rounds(settings(tmp_path, manager, weight=0))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor_rollout_ref.model.lora_rank=32"], r"trained by LoRA, .* Type: .*lora_rank=0$"),
        (["model_engine=megatron"], r"strategy is megatron; valid are fsdp and fsdp2, .* Type: .*=fsdp2$"),
    ],
)
def test_a_policy_that_is_not_merged_into_a_model(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(IterateError, match=message):
        compose_rounds(settings(tmp_path, *overrides))


def test_the_rule_is_imported_and_tried(tmp_path: Path) -> None:
    assert the_rule(settings(tmp_path).reward_model) is correctness
    assert (
        the_rule(settings(tmp_path, label="verl.utils.reward_score.gsm8k.compute_score").reward_model)(
            "#### 4", "4"
        )
        == 1.0
    )


@pytest.mark.parametrize(
    "label", ["no.such.module.rule", "grpo_verl_ext.rewards.no_rule", "os.getcwd", "x", "os"]
)
def test_what_is_no_rule_is_named(tmp_path: Path, label: str) -> None:
    with pytest.raises(IterateError, match=rf"reward_model\.label is '{label}', which cannot be asked"):
        the_rule(settings(tmp_path, label=label).reward_model)


def test_a_field_that_trl_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(
        IterateError, match=r"reward_model\.trainer\.learning_rat is not a field of TRL's RewardConfig"
    ):
        check_trainer(settings(tmp_path, trainer={"learning_rat": 1}).reward_model)


def test_no_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(IterateError, match=r"Type: pip install '\.\[iterate\]'"):
        check_trainer(settings(tmp_path).reward_model)


def test_pairs_to_replay_that_are_not_there_or_not_pairs(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    with pytest.raises(FileNotFoundError, match=str(file)):
        checked_rule(settings(tmp_path, replay_from=str(file)), OmegaConf.create())
    write_examples(file, [Pair("1+1=?", "2", "3")])
    with pytest.raises(IterateError, match=rf"{file}, line 1, is not a steps"):
        checked_rule(of_steps(tmp_path, replay_from=str(file)), OmegaConf.create())


STEP_RULE = "grpo_verl_ext.rewards.steps.compute_score"


def of_steps(folder: Path, *overrides: str, **reward_model: object) -> IterateSettings:
    return settings(folder, *overrides, label=None, step_label=STEP_RULE, **reward_model)


def test_the_rule_of_steps_is_imported_and_tried(tmp_path: Path) -> None:
    assert the_rule(of_steps(tmp_path).reward_model) is compute_score
    file = Path(__file__).parents[2] / "examples" / "rewards" / "gsm8k_steps.py"
    assert the_rule(RewardModelSettings(step_label=f"{file}:compute_score"))


@pytest.mark.parametrize("name", ["no.such.rule", RULE, "os.getcwd"])
def test_what_gives_no_steps_is_named(name: str) -> None:
    with pytest.raises(IterateError, match=rf"reward_model\.step_label is '{name}', which cannot be asked"):
        the_rule(RewardModelSettings(step_label=name))


def test_a_model_that_the_second_round_would_not_learn_from(tmp_path: Path) -> None:
    of_process = ("algorithm.adv_estimator=grpo_process", "+task=chain_sum", STEPS_ON)
    with pytest.raises(
        IterateError, match=r"adv_estimator is grpo_outcome, .* of reward_model\.step_label\."
    ):
        compose_rounds(of_steps(tmp_path))
    with pytest.raises(IterateError, match=r"adv_estimator is grpo_process, .* of reward_model\.label\."):
        compose_rounds(settings(tmp_path, *of_process))
    compose_rounds(of_steps(tmp_path, *of_process))
    compose_rounds(settings(tmp_path, *of_process, weight=0))


def test_the_fields_of_the_trainer_of_steps(tmp_path: Path) -> None:
    check_trainer(of_steps(tmp_path, trainer={"max_completion_length": 9}).reward_model)
    with pytest.raises(IterateError, match=r"trainer\.centre is not a field of TRL's PRMConfig"):
        check_trainer(of_steps(tmp_path, trainer={"centre": 1}).reward_model)
    with pytest.raises(IterateError, match=r"step_separator is '\\n', but the steps end where"):
        check_trainer(of_steps(tmp_path, trainer={"step_separator": "\n"}).reward_model)
