"""Test `verl_scripts`, which judges verl's example scripts, on a checkout of a few small ones."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shell_scripts import Folder, Outcome

JUDGE = Path(__file__).parent / "verl_scripts.py"
LIST = """
set -euo pipefail
DEVICE=$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=$HOME/train.parquet \\
    actor_rollout_ref.model.path="$HOME/some model" actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.actor.use_dynamic_bsz=True trainer.n_gpus_per_node=8 \\
    trainer.project_name=${DEVICE} trainer.logger='["console","wandb"]' \\
"""


def folder_of(tmp_path: Path, **scripts: str) -> Folder:
    examples = tmp_path / "verl" / "examples"
    examples.mkdir(parents=True)
    for name, lines in scripts.items():
        (examples / f"{name}.sh").write_text(lines, encoding="utf-8")
    return Folder(tmp_path / "verl", tmp_path / "folder")


def outcome_of(tmp_path: Path, lines: str) -> Outcome:
    folder = folder_of(tmp_path, one=lines)
    return folder.run(*folder.scripts())


def test_arguments_are_recorded_word_by_word(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, LIST)
    assert outcome.failure is None
    assert [invocation.module for invocation in outcome.invocations] == [None, "verl.trainer.main_ppo"]
    overrides = outcome.invocations[-1].overrides
    assert overrides[2] == f"actor_rollout_ref.model.path={tmp_path}/folder/home/some model"
    assert overrides[-2:] == ("trainer.project_name=gpu", 'trainer.logger=["console","wandb"]')


@pytest.mark.parametrize(
    "lines",
    [
        'ray job submit --no-wait --runtime-env="$PWD/env.yaml" -- python3 -m verl.trainer.main_ppo a=1',
        "set -u; : ${WHERE_IT_IS:?say where} $AND_THIS; python -m verl.trainer.main_ppo a=1 | tee -a log.txt",
        "uv run --frozen --extra vllm python3 -m verl.trainer.main_ppo a=1",
        "set -e; ulimit -n 1048576; pip install x; sudo reboot; nohup python -m verl.trainer.main_ppo a=1",
    ],
)
def test_what_is_around_the_command_does_not_matter(tmp_path: Path, lines: str) -> None:
    outcome = outcome_of(tmp_path, lines)
    assert outcome.failure is None
    (invocation,) = outcome.invocations
    assert (invocation.module, invocation.overrides) == ("verl.trainer.main_ppo", ("a=1",))


@pytest.mark.parametrize("line", ["mkdir {}/made", "rm -rf {}", "cp $0 {}/copied", "echo x | tee {}/log"])
def test_nothing_is_touched_elsewhere(tmp_path: Path, line: str) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    assert (
        outcome_of(tmp_path, f"set -e\n{line.format(elsewhere)}\nmkdir -p ~/here && cd ~/here").failure
        is None
    )
    assert list(elsewhere.iterdir()) == []


def test_a_script_that_writes_elsewhere_is_not_run(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, f"python3 -m verl.trainer.main_ppo > {tmp_path}/log")
    assert outcome.failure == f"not run: it writes to {tmp_path}/log"
    assert not (tmp_path / "log").exists()


def test_a_script_that_fails_says_why(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, "python3 -m a.b\necho no such device >&2\nexit 3")
    assert (len(outcome.invocations), outcome.failure) == (1, "exit 3: no such device")


def test_a_plain_list_passes_without_a_word_and_one_of_ours_does_not(tmp_path: Path) -> None:
    """The plain one has no files where it says, which only the workers need to see."""
    folder = folder_of(
        tmp_path,
        plain=LIST,
        ours=LIST.replace("algorithm.adv_estimator=grpo", "+algo=gvpo algorithm.adv_estimator=grpo"),
        wrong=f"{LIST} trainer.no_such_key=1",
    )
    judged = subprocess.run(
        [sys.executable, JUDGE, folder.checkout, "--json", tmp_path / "judged.json", "--algo"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lists = json.loads((tmp_path / "judged.json").read_text(encoding="utf-8"))["lists"]
    ours, plain, wrong = (by_script(lists, name) for name in ("ours", "plain", "wrong"))
    traces = ("error", "said", "threads", "environment", "changed")
    assert plain["verl"] is None
    assert not any(plain[trace] for trace in traces), {trace: plain[trace] for trace in traces}
    assert ours["verl"] is None
    assert "algorithm.adv_estimator=gvpo" in ours["error"]
    assert "no_such_key" in wrong["verl"]
    assert judged.returncode == 1, "a list that is refused has ours in it"


def by_script(lists: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (one for one in lists if Path(one["script"]).stem == name)
    return found
