"""Test that ``iterate`` refuses, before the first round, what would fail in it or in the second."""

import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grpo_verl_ext import preflight
from grpo_verl_ext.iterate.examples import Pair, write_examples
from grpo_verl_ext.iterate.rounds import checked_rule, compose_rounds
from grpo_verl_ext.iterate.settings import IterateError, read_settings
from grpo_verl_ext.rewards.rules import correctness
from grpo_verl_ext.rewards.steps import compute_score

RULE, STEP_RULE = "grpo_verl_ext.rewards.rules.correctness", "grpo_verl_ext.rewards.steps.compute_score"
OF_STEPS = {"label": None, "step_label": STEP_RULE}
EXAMPLES = Path(__file__).parents[2] / "examples"

SAVED = "actor_rollout_ref.actor.checkpoint.save_contents"


@pytest.fixture
def rule_of(monkeypatch: pytest.MonkeyPatch):
    """The rule of settings whose training is not checked."""
    monkeypatch.setattr(preflight, "check_training", lambda config: None)
    return lambda settings: checked_rule(settings, OmegaConf.create())


@pytest.mark.usefixtures("eight_gpus")
def test_the_example_for_gpus_composes_in_every_round(rule_of) -> None:
    example = read_settings(EXAMPLES / "iterate_gsm8k.yaml")
    config = compose_rounds(example)
    assert (config.algorithm.adv_estimator, config.trainer.total_training_steps) == ("grpo_outcome", 100)
    assert (config.trainer.n_gpus_per_node, config.trainer.nnodes) == (8, 2)
    assert config.reward.reward_manager.name == "naive", "round 1 has no reward model yet"
    assert rule_of(example)("#### 4", "4") == 1.0


def test_the_examples_of_right_answers_compose_and_fit_each_other(monkeypatch, rule_of) -> None:
    monkeypatch.setenv("START", "3")
    start = read_settings(EXAMPLES / "iterate_answers_start.yaml", ["seed=3"])
    rounds = read_settings(EXAMPLES / "iterate_answers.yaml", ["seed=103"])
    assert rounds.reward_model.start == f"{start.folder}/round-1/reward_model"
    assert start.reward_model.label == rounds.reward_model.label
    assert rule_of(start) is correctness
    one = read_settings(EXAMPLES / "iterate_answers.yaml", ["rounds=1", "policy.steps=16"])
    assert one.policy.steps == rounds.rounds * rounds.policy.steps, "as many samples"

    policy = compose_rounds(start)
    assert policy.trainer.critic_warmup > start.policy.steps, "the policy is not trained"
    judged = compose_rounds(rounds)
    assert judged.task.seed == policy.task.seed == 3
    assert judged.reward.reward_manager.name == "rule_and_model"
    assert judged.algorithm.grpo_ext.reward_model.rule_weight == 0


def test_what_the_driver_would_refuse(settings) -> None:
    wrong = settings("+platform=cpu", "actor_rollout_ref.rollout.n=1")
    with pytest.raises(IterateError, match=r"policy\.overrides: group-size is tested with .*n ≥ 2; it is 1"):
        checked_rule(wrong, compose_rounds(wrong))


PROCESS = ("algorithm.adv_estimator=grpo_process", "+task=chain_sum", "+algorithm.grpo_ext.step_rewards=true")
DAPO = "reward.reward_manager.name=dapo"
"""It punishes long responses: in round 1 alone, for later rounds have another manager."""
REPLACED = r"reward_manager\.name naive or .*; it is dapo, .* Type: reward\.reward_manager\.name=naive$"


@pytest.mark.parametrize(
    ("overrides", "reward_model", "message"),
    [
        (["trainer.no_such_key=1"], {}, r"policy\.overrides: verl refuses them: .*no_such_key"),
        (["actor_rollout_ref.model.lora_rank=32"], {}, r"it is 32, .* Type: .*lora_rank=0$"),
        (["trainer.save_freq=-1"], {}, r"save_freq ≥ 1; it is -1, .* Type: trainer\.save_freq=1$"),
        ([f"{SAVED}=[model]"], {}, r"save_contents is \['model'\], .*Add hf_model to it$"),
        (["model_engine=megatron"], {}, r"strategy fsdp2 or fsdp; it is megatron, .* Type: .*=fsdp2$"),
        ([DAPO], {}, REPLACED),
        ([DAPO], {"start": "a/reward/model"}, REPLACED),
        ([], OF_STEPS, r"adv_estimator is grpo_outcome, .* of reward_model\.step_label\."),
        (PROCESS, {}, r"adv_estimator is grpo_process, .* of reward_model\.label\."),
    ],
)
def test_a_policy_that_no_later_round_would_learn_from(settings, overrides, reward_model, message) -> None:
    with pytest.raises(IterateError, match=message):
        compose_rounds(settings(*overrides, **reward_model))


@pytest.mark.parametrize(
    ("overrides", "reward_model"), [([DAPO], {"weight": 0}), (PROCESS, OF_STEPS), (PROCESS, {"weight": 0})]
)
def test_a_policy_that_fits_its_reward_model(settings, overrides, reward_model) -> None:
    compose_rounds(settings(*overrides, **reward_model))


@pytest.mark.parametrize(
    ("rule", "name"),
    [("label", "no.such.module.rule"), ("label", "os.getcwd"), ("label", "os"), ("step_label", RULE)],
)
def test_what_is_no_rule_is_named(settings, rule_of, rule: str, name: str) -> None:
    with pytest.raises(IterateError, match=rf"reward_model\.{rule} is '{name}', which cannot be run"):
        rule_of(settings(**{"label": None, rule: name}))


def test_the_rule_of_steps_is_imported_and_tried(settings, rule_of) -> None:
    assert rule_of(settings(**OF_STEPS)) is compute_score
    assert rule_of(settings(label=None, step_label=f"{EXAMPLES}/rewards/gsm8k_steps.py:compute_score"))


@pytest.mark.parametrize(
    ("reward_model", "message"),
    [
        ({"trainer": {"learning_rat": 1}}, "does not fit TRL's RewardConfig: .*'learning_rat'"),
        (OF_STEPS | {"trainer": {"centre": 1}}, "does not fit TRL's PRMConfig: .*'centre'"),
        (OF_STEPS | {"trainer": {"step_separator": "\n"}}, "multiple values .*'step_separator'"),
    ],
)
def test_what_trl_would_refuse(settings, reward_model: dict[str, object], message: str) -> None:
    with pytest.raises(IterateError, match=message):
        checked_rule(settings(**reward_model), OmegaConf.create())


def test_no_trl(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command names the extra that installs it."""
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(ModuleNotFoundError, match="trl"):
        checked_rule(settings(), OmegaConf.create())


def test_pairs_to_replay_that_are_not_there_or_not_pairs(settings, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    with pytest.raises(IterateError, match=f"{file} cannot be read"):
        checked_rule(settings(replay_from=str(file)), OmegaConf.create())
    write_examples(file, [Pair("1+1=?", "2", "3")])
    with pytest.raises(IterateError, match=rf"{file}, line 1, is no record of Steps"):
        checked_rule(settings(replay_from=str(file), **OF_STEPS), OmegaConf.create())
