"""Test how `grpo-verl-ext doctor` reads a training's line as it stands in a script."""

import pytest

from grpo_verl_ext.doctor import pasted_line
from grpo_verl_ext.doctor.pasted_line import MODULE

LINE = ["-m", MODULE, "+algo=gvpo", "data.train_batch_size=64"]
AFTER = ["+algo=gvpo", "data.train_batch_size=64"]


@pytest.mark.parametrize(
    "before",
    [
        ["python3", "-m"],
        ["uv", "run", "--isolated", "--with", "verl", "python3", "-m"],
        ["torchrun", "--nproc_per_node=8", "-m"],
        ["CUDA_VISIBLE_DEVICES=0,1", "HYDRA_FULL_ERROR=1", "python3", "-u", "-m"],
        ["ray", "job", "submit", "--address=http://head:8265", "--", "python3", "-m"],
    ],
)
def test_what_precedes_the_module_is_left_out(before: list[str]) -> None:
    assert pasted_line.read([*before, MODULE, *AFTER]) == (LINE, before)


def test_the_module_may_be_its_file() -> None:
    assert pasted_line.read(["python3", "/opt/verl/verl/trainer/main_ppo.py", *AFTER]) == (LINE, ["python3"])


def test_options_of_the_doctor_are_kept() -> None:
    own = ["--json", "--config-name=ppo_megatron_trainer"]
    assert pasted_line.read([*own, "python3", "-m", MODULE, *AFTER])[0] == [*own, *LINE]


@pytest.mark.parametrize("argument", ['"$@"', "$@", "${@}", "${@:2}", "$*", '"${@:1}"'])
def test_arguments_of_a_script_are_left_out(argument: str) -> None:
    read = pasted_line.read(["python3", "-m", MODULE, *AFTER, argument])
    assert read == (LINE, ["python3", "-m", argument])


def test_a_whole_line_may_be_one_quoted_word_with_continuations() -> None:
    text = f"""HYDRA_FULL_ERROR=1 python3 -m {MODULE} \\
        +algo=gvpo \\
        data.train_batch_size=64 "$@" 2>&1 | tee train.log"""
    arguments, left_out = pasted_line.read([text])
    assert arguments == LINE
    assert left_out == ["HYDRA_FULL_ERROR=1", "python3", "-m", "$@", "2>&1", "|", "tee", "train.log"]


def test_a_space_behind_a_backslash_is_no_override() -> None:
    assert pasted_line.read(["python3", "-m", MODULE, AFTER[0], " ", "\\", "\n", AFTER[1]])[0] == LINE


@pytest.mark.parametrize(
    "words",
    [
        ["+algo=gvpo", "data.train_files=a|b", "x='a > b'"],
        ["python3", "-m", "verl.trainer.main_ppo_sync", "a=1"],
        ["trainer.experiment_name=verl.trainer.main_ppo"],
        [f'an open " quotation mark before {MODULE} a=1'],
        [],
    ],
)
def test_a_line_without_the_module_stays_as_it_is(words: list[str]) -> None:
    assert pasted_line.read(words) == (words, [])
