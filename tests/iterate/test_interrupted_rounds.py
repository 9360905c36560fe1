"""Test Ctrl-C at each stage of rounds: status 130, one line, no process left; the next start resumes."""

import json
from pathlib import Path

import interrupted
import pandas
import pytest
from interrupted import command_line

STAGES = {
    "it is checked": "grpo_verl_ext.iterate.checks:composed",
    "a training starts": "0",
    "it trains": "3",
    "pairs are made": "grpo_verl_ext.iterate.examples:make_pairs",
    "the table is printed": "grpo_verl_ext.iterate.rounds:_print_table",
}


@pytest.mark.long
def test_at_each_stage(tmp_path: Path, policy: Path) -> None:
    """No response gets a better label than another, so that no reward model is trained."""
    data = tmp_path / "train.parquet"
    pandas.DataFrame({"prompt": ["1+1=?"]}).to_parquet(data)
    overrides = [
        *("+algo=grpo", "+platform=cpu", "actor_rollout_ref.rollout.n=4"),
        *(f"data.train_files={data}", f"data.val_files={data}", f"actor_rollout_ref.model.path={policy}"),
    ]
    settings = {
        "folder": str(tmp_path / "out"),
        "rounds": 1,
        "policy": {"steps": 5, "overrides": overrides},
        "reward_model": {"label": "grpo_verl_ext.rewards.rules.format_reward"},
    }
    (tmp_path / "rounds.yaml").write_text(json.dumps(settings))
    words, said = ("iterate", "run", str(tmp_path / "rounds.yaml")), tmp_path / "said"
    for stage in STAGES.values():
        interrupted.interrupt(interrupted.start(command_line, stage, *words, folder=said), said)
        assert not list(tmp_path.rglob("*.partial"))
    last = interrupted.start(command_line, None, *words, folder=said)
    last.join(interrupted.SECONDS)
    assert last.exitcode == 0, (said / "stderr").read_text()
    attempts = sorted(each.name for each in (tmp_path / "out" / "round-1" / "policy").glob("attempt-*.jsonl"))
    assert attempts == ["attempt-2.jsonl", "attempt-3.jsonl"], "a part that is finished is not repeated"
    (record,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["rounds"]
    assert list(record["parts"]) == ["policy", "pairs", "reward_model"]
