"""Test `grpo-verl-ext doctor --fix`: first mistakes give a command that passes, with nothing else changed."""

import json
import shlex

import pytest
from typer.testing import CliRunner

from grpo_verl_ext.cli import app
from grpo_verl_ext.doctor.configuration import correct, put_in
from grpo_verl_ext.utils.errors import Line, Severity

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
GVPO, GRPO = "+algo=gvpo", "+algo=grpo"
STATIC = f"{ACTOR}.use_dynamic_bsz=false trainer.n_gpus_per_node=8"
MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
OTHER_MICRO = [f"actor_rollout_ref.{part}.log_prob_micro_batch_size_per_gpu" for part in ("rollout", "ref")]
MODE, PARTS = "trainer.v1.trainer_mode", "trainer.v1.separate_async.parameter_sync_step"
BETA, SCALE, MINI = "gvpo_beta=0.2", "algorithm.grpo_ext.scale_reward", f"{ACTOR}.ppo_mini_batch_size"
ESTIMATOR, LOSS = "algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode"
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg.len=32"
SIZES = " ".join(f"{key}=1" for key in (MICRO, *OTHER_MICRO))

MISTAKES = [
    # a check, the words that were typed, words of the corrected command, keys that must be gone
    ("gradient", f"{GVPO} {ESTIMATOR}=grpo {LOSS}=vanilla", GVPO, f"{ESTIMATOR} {LOSS}"),
    ("names", f"{GVPO} {MODE}=grpo_ext_synk", f"{GVPO} {MODE}=grpo_ext_sync", ""),
    ("composition", "+algo@_global_=GVPO", "+algo@_global_=gvpo", ""),
    ("composition", "+algo=[lite_ppo,grpo]", GRPO, ""),
    ("options", f"{GRPO} +{SCALE}=group", f"{GRPO} ++{SCALE}s=group", SCALE),
    ("composition", f"{GRPO} {SCALE}=group", f"{GRPO} ++{SCALE}s=group", SCALE),
    ("types", f"{GVPO} +{ACTOR}.{BETA}", f"{GVPO} {ACTOR}.policy_loss.{BETA}", f"{ACTOR}.gvpo_beta"),
    # a micro-batch size for each of three models
    ("verl", f"{GRPO} {STATIC}", f"{GRPO} {STATIC} {SIZES}", ""),
    # 33 · 4 rows are not a multiple of 8 GPUs; 34 · 4 are.
    ("verl", f"{GRPO} {STATIC} {SIZES} data.train_batch_size=33", "data.train_batch_size=34", ""),
    ("missing", f"{GRPO} {ROLLOUT}.name=???", f"{GRPO} {ROLLOUT}.name=vllm", ""),
    ("composition", f"{GRPO} actor_rollout_ref.actr.ppo_epochs=2", f"{ACTOR}.ppo_epochs=2", ""),
    ("composition", f"+algo=dapo +{BUFFER}", f"+algo=dapo {BUFFER}", ""),
    ("ratio", f"+algo=rloo {MODE}=separate_async {PARTS}=4 {MINI}=8", f"{MODE}=separate_async {PARTS}=1", ""),
    ("batch-scale", f"+algo=lite_ppo {MODE}=separate_async {PARTS}=4 {MINI}=8", f"{PARTS}=1", ""),
]


def keys(words: list[str]) -> list[str]:
    return [word.lstrip("+~").partition("=")[0] for word in words]


@pytest.mark.parametrize(("check", "line", "wanted", "gone"), MISTAKES)
def test_a_first_mistake_gives_a_command_that_passes(whole, check, line, wanted, gone) -> None:
    typed = line.split()
    words = [each for each in whole if each.partition("=")[0] not in keys(typed)] + typed
    corrected, mended, left = correct(words)
    assert check in {each.check for each in mended}
    assert [each for each in left if each.severity is not Severity.NOTE] == []
    assert {*wanted.split()} <= {*corrected}
    assert not {*gone.split()} & {*keys(corrected)}
    # All else is as it was typed, in its order.
    assert [word for word in corrected if word in words] == [word for word in words if word in corrected]
    assert {*words} - {*typed} <= {*corrected}


def test_what_is_not_known_stays_and_is_said(whole: list[str]) -> None:
    reward = "reward.custom_reward_function.path=/no/reward.py"
    corrected, mended, left = correct([GRPO, *whole, reward, "actor_rollout_ref.rollout.n=1"])
    assert ([each.check for each in mended], [each.check for each in left]) == (["group-size"], ["files"])
    assert reward in corrected


def test_a_right_command_is_printed_as_it_is(whole: list[str]) -> None:
    result = CliRunner().invoke(app, ["doctor", "--fix", GRPO, *whole])
    assert result.exit_code == 0
    command = shlex.split(result.stdout.replace("\\\n", " "))
    assert command == ["python3", "-m", "verl.trainer.main_ppo", GRPO, *whole]
    assert "findings: 0" in result.stderr


def test_the_printed_command_can_be_pasted(whole: list[str]) -> None:
    mistakes = ["trainer.logger=[console,fiel]", f"{ACTOR}.loss_agg_mode=token-mean"]
    typed = [GRPO, *whole, "trainer.project_name=two words", *mistakes]
    result = CliRunner().invoke(app, ["doctor", "--fix", "python3", "-m", "verl.trainer.main_ppo", *typed])
    assert result.exit_code == 0
    command = shlex.split(result.stdout.replace("\\\n", " "))
    assert command[-2:] == ["trainer.project_name=two words", "trainer.logger=[console,file]"]
    assert "fixed gradient: preset grpo does not name what will be trained" in result.stderr


def test_json_has_the_command_and_what_was_fixed(whole: list[str]) -> None:
    words = [GRPO, *whole, "actor_rollout_ref.rollout.n=1"]
    result = CliRunner().invoke(app, ["doctor", "--fix", "--json", *words])
    found = json.loads(result.stdout)
    assert found["command"][3:] == [GRPO, *whole[:4], "actor_rollout_ref.rollout.n=8", *whole[5:]]
    assert ([each["check"] for each in found["fixed"]], found["findings"]) == (["group-size"], [])


def test_without_a_command_there_is_nothing_to_correct() -> None:
    result = CliRunner().invoke(app, ["doctor", "--fix"])
    assert result.exit_code == 2
    assert "doctor --fix +algo@_global_=" in " ".join(result.stderr.replace("│", " ").split())


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
        (Line(without=("a.b",)), ["+a.b.c=2", "a.bc=3"], ["a.bc=3"]),
    ],
)
def test_how_a_line_is_put_into_a_command(line: Line, typed: list[str], corrected: list[str]) -> None:
    assert put_in(line, typed) == corrected
