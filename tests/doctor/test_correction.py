"""Test `grpo-verl-ext doctor --fix`: first mistakes give a command that passes, with nothing else changed."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from grpo_verl_ext.cli import app
from grpo_verl_ext.doctor.configuration import all_findings, correct, put_in
from grpo_verl_ext.utils.errors import Line, Severity

ACTOR = "actor_rollout_ref.actor"
GVPO, GRPO = ["+algo=gvpo"], ["+algo=grpo"]
STATIC = [f"{ACTOR}.use_dynamic_bsz=false", "trainer.n_gpus_per_node=8"]
MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
OTHER_MICRO = [f"actor_rollout_ref.{part}.log_prob_micro_batch_size_per_gpu" for part in ("rollout", "ref")]
SAMPLER = "trainer.v1.sampler.custom_sampler"
PARTS = "trainer.v1.separate_async.parameter_sync_step"

MISTAKES = {
    # the words that were typed, the words in the corrected command, what must be gone
    "a preset before a script's estimator and loss": (
        [*GVPO, "algorithm.adv_estimator=grpo", f"{ACTOR}.policy_loss.loss_mode=vanilla"],
        GVPO,
        ["algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode"],
    ),
    "a trainer mode of no registry": (
        [*GVPO, "trainer.v1.trainer_mode=grpo_ext_synk"],
        [*GVPO, "trainer.v1.trainer_mode=grpo_ext_sync"],
        [],
    ),
    "a preset in capitals, in the long form": (["+algo@_global_=GVPO"], ["+algo@_global_=gvpo"], []),
    "two presets": (["+algo=[lite_ppo, grpo]"], GRPO, []),
    "an option with a typing error": (
        [*GRPO, "+algorithm.grpo_ext.scale_reward=group"],
        [*GRPO, "++algorithm.grpo_ext.scale_rewards=group"],
        ["algorithm.grpo_ext.scale_reward"],
    ),
    "the same without a plus": (
        [*GRPO, "algorithm.grpo_ext.scale_reward=group"],
        [*GRPO, "++algorithm.grpo_ext.scale_rewards=group"],
        ["algorithm.grpo_ext.scale_reward"],
    ),
    "the parts of a step in a section of our mode": (
        [
            *(*GVPO, "trainer.v1.trainer_mode=grpo_ext_separate_async"),
            *("+trainer.v1.grpo_ext_separate_async.parameter_sync_step=2", f"{ACTOR}.ppo_mini_batch_size=32"),
        ],
        [*GVPO, f"{PARTS}=2"],
        ["trainer.v1.grpo_ext_separate_async.parameter_sync_step"],
    ),
    "a text for β": (
        [*GVPO, f"{ACTOR}.policy_loss.gvpo_beta=abc"],
        [*GVPO, f"{ACTOR}.policy_loss.gvpo_beta=0.1"],
        [],
    ),
    "the recipe's β": (
        [*GVPO, f"+{ACTOR}.gvpo_beta=0.2"],
        [*GVPO, f"{ACTOR}.policy_loss.gvpo_beta=0.2"],
        [f"{ACTOR}.gvpo_beta"],
    ),
    "a logger with a typing error": (
        [*GRPO, "trainer.logger=[console,fiel]"],
        [*GRPO, "trainer.logger=[console,file]"],
        [],
    ),
    "a KL in the reward beside the preset's": (
        [*GRPO, "algorithm.use_kl_in_reward=true"],
        [*GRPO, "algorithm.use_kl_in_reward=false"],
        [],
    ),
    "no micro-batch size, three times": (
        [*GRPO, *STATIC],
        [*GRPO, *STATIC, f"{MICRO}=1", *(f"{key}=1" for key in OTHER_MICRO)],
        [],
    ),
    "rows that the GPUs cannot share": (
        [*GRPO, *STATIC, *(f"{key}=2" for key in (MICRO, *OTHER_MICRO)), "data.train_batch_size=33"],
        ["data.train_batch_size=34"],
        [],
    ),
    "no rollout engine": (
        [*GRPO, "actor_rollout_ref.rollout.name=???"],
        [*GRPO, "actor_rollout_ref.rollout.name=vllm"],
        [],
    ),
    "one response": (
        [*GRPO, "actor_rollout_ref.rollout.n=1"],
        [*GRPO, "actor_rollout_ref.rollout.n=8"],
        [],
    ),
    "a text for a number": (
        [*GRPO, "trainer.total_epochs=foo"],
        [*GRPO, "trainer.total_epochs=30"],  # verl's default
        [],
    ),
    "a loss of verl's that depends on the cut": (
        [*GRPO, f"{ACTOR}.policy_loss.loss_mode=geo_mean"],
        GRPO,
        [f"{ACTOR}.policy_loss.loss_mode"],
    ),
    "a plus before a key that is there": (
        ["+algo=dapo", "+reward.reward_kwargs.overlong_buffer_cfg.len=32"],
        ["+algo=dapo", "reward.reward_kwargs.overlong_buffer_cfg.len=32"],
        [],
    ),
    "steps in parts with a loss that has no ratio": (
        [
            *("+algo=rloo", "trainer.v1.trainer_mode=separate_async", f"{PARTS}=4"),
            f"{ACTOR}.ppo_mini_batch_size=8",
        ],
        ["+algo=rloo", "trainer.v1.trainer_mode=separate_async", f"{PARTS}=1"],
        [],
    ),
    "dynamic sampling that is left to another sampler": (
        ["+algo=dapo", f"{SAMPLER}.path=/sampler.py", f"{SAMPLER}.name=Sampler"],
        ["+algo=dapo", f"{SAMPLER}.path=null"],
        [],
    ),
    "dynamic sampling with verl's older trainer": (
        ["+algo=dapo", "trainer.use_v1=false"],
        ["+algo=dapo", "trainer.use_v1=true"],
        [],
    ),
    "a batch's standard deviation of its parts": (
        [
            "+algo=lite_ppo",
            "trainer.v1.trainer_mode=separate_async",
            f"{PARTS}=4",
            f"{ACTOR}.ppo_mini_batch_size=8",
        ],
        ["+algo=lite_ppo", f"{PARTS}=1"],
        [],
    ),
}


def keys(words: list[str]) -> list[str]:
    return [word.lstrip("+~").partition("=")[0] for word in words]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_first_mistake_gives_a_command_that_passes(whole: list[str], name: str) -> None:
    typed, wanted, gone = MISTAKES[name]
    words = [each for each in whole if each.partition("=")[0] not in keys(typed)] + typed
    assert list(all_findings(words)), "it was a mistake"
    correction = correct(words)
    assert [each for each in correction.left if each.severity is not Severity.NOTE] == []
    assert set(wanted) <= set(correction.overrides)
    assert not set(gone) & set(keys(correction.overrides))
    # All else is as it was typed, in its order.
    same = [word for word in words if word in correction.overrides]
    assert [word for word in correction.overrides if word in words] == same
    assert set(words) - set(typed) <= set(correction.overrides)


def test_what_is_not_known_stays_and_is_said(whole: list[str]) -> None:
    reward = "reward.custom_reward_function.path=/no/reward.py"
    words = [*GRPO, *whole, reward, "actor_rollout_ref.rollout.n=1"]
    correction = correct(words)
    assert [each.check for each in correction.mended] == ["group-size"]
    assert [each.check for each in correction.left] == ["files"]
    assert reward in correction.overrides


def test_a_right_command_is_printed_as_it_is(whole: list[str]) -> None:
    result = CliRunner().invoke(app, ["doctor", "--fix", *GRPO, *whole])
    assert result.exit_code == 0
    command = shlex.split(result.stdout.replace("\\\n", " "))
    assert command == ["python3", "-m", "verl.trainer.main_ppo", *GRPO, *whole]
    assert "findings: 0" in result.stderr


def test_the_printed_command_can_be_pasted(whole: list[str]) -> None:
    typed = [
        "trainer.project_name=two words",
        "trainer.logger=[console,fiel]",
        f"{ACTOR}.loss_agg_mode=token-mean",
    ]
    result = CliRunner().invoke(
        app, ["doctor", "--fix", "python3", "-m", "verl.trainer.main_ppo", *GRPO, *whole, *typed]
    )
    assert result.exit_code == 0
    command = shlex.split(result.stdout.replace("\\\n", " "))
    assert command[-2:] == ["trainer.project_name=two words", "trainer.logger=[console,file]"]
    assert "mended gradient: +algo=grpo does not name what will be trained" in result.stderr


def test_json_has_the_command_and_what_was_mended(whole: list[str]) -> None:
    words = [*GRPO, *whole, "actor_rollout_ref.rollout.n=1"]
    result = CliRunner().invoke(app, ["doctor", "--fix", "--json", *words])
    found = json.loads(result.stdout)
    assert found["command"][3:] == [*GRPO, *whole[:4], "actor_rollout_ref.rollout.n=8", *whole[5:]]
    assert ([each["check"] for each in found["mended"]], found["findings"]) == (["group-size"], [])


def test_without_a_command_there_is_nothing_to_correct() -> None:
    result = CliRunner().invoke(app, ["doctor", "--fix"])
    assert result.exit_code == 2
    assert "doctor --fix +algo=" in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("line", "typed", "corrected"),
    [
        (Line("a.b=1"), ["a.b=2", "c=3"], ["a.b=1", "c=3"]),
        (Line("a.b=1"), ["c=3"], ["c=3", "a.b=1"]),
        (Line("a.b=1"), ["+a.b=2"], ["+a.b=1"]),
        (Line("+a.b=1"), ["a.b=2"], ["a.b=1"]),
        (Line("++a.b=1"), ["+a.b=2"], ["++a.b=1"]),
        (Line("a.b=1"), ["a.b=2", "c=3", "a.b=4"], ["a.b=1", "c=3"]),
        (Line("~a.b"), ["+a.b=2", "c=3"], ["c=3"]),
        (Line("~a.b"), ["c=3"], ["c=3", "~a.b"]),
        (Line("+algo=gmpo"), ["+algo@_global_=grpo"], ["+algo@_global_=gmpo"]),
        (Line(without=("a.b",)), ["+a.b=2", "c=3"], ["c=3"]),
        (Line(without=("a.b",)), ["c=3"], ["c=3"]),
        (Line(without=("a.b",)), ["+a.b.c=2", "a.bc=3"], ["a.bc=3"]),
    ],
)
def test_how_a_line_is_put_into_a_command(line: Line, typed: list[str], corrected: list[str]) -> None:
    assert put_in(line, typed) == corrected


def test_a_line_is_the_text_that_is_typed_and_survives_a_pickle() -> None:
    import pickle

    line = Line("a=[1,2]", "b=${c}", more=", or d=1")
    assert line == "'a=[1,2]' 'b=${c}', or d=1"
    again = pickle.loads(pickle.dumps(line))
    assert (again, again.words) == (line, ("a=[1,2]", "b=${c}"))
