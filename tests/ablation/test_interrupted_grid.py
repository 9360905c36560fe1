"""Test Ctrl-C at each stage of a grid: status 130, one line, no process left; the next start resumes."""

import json
from pathlib import Path

import interrupted
import pandas
import pytest
from interrupted import command_line

from grpo_verl_ext.ablation.grid import read_grid, runs_of

STAGES = {
    "it is planned": ("plan", "grpo_verl_ext.verl_plugin.compose:composed"),
    "it is checked": ("run", "grpo_verl_ext.verl_plugin.compose:composed"),
    "a training starts": ("run", "0"),
    "it trains": ("run", "3"),
    "between two runs": ("run", "grpo_verl_ext.ablation.run:git_revision:2"),
    "the report is written": ("report", "grpo_verl_ext.ablation.report:write_page"),
}


def written(folder: Path, *base: str, model: Path | None = None) -> Path:
    """A grid of two variants and a seed, on a dataset of one prompt where it has a model."""
    if model is not None:
        pandas.DataFrame({"prompt": ["1+1=?"]}).to_parquet(folder / "train.parquet")
        files = [f"data.{name}={folder}/train.parquet" for name in ("train_files", "val_files")]
        base = (f"actor_rollout_ref.model.path={model}", *files)
    grid = {
        "folder": str(folder / "out"),
        "steps": 5,
        "base": ["+platform=cpu", "actor_rollout_ref.rollout.n=4", *base],
        "axes": {"algo": {name: [f"+algo={name}"] for name in ("grpo", "gvpo")}},
        "seeds": [1],
        "baseline": ["grpo"],
        "metrics": ["acc"],
    }
    (folder / "grid.yaml").write_text(json.dumps(grid))
    return folder / "grid.yaml"


@pytest.mark.ci
def test_at_each_stage(tmp_path: Path, policy: Path) -> None:
    file = written(tmp_path, model=policy)
    said = tmp_path / "said"
    for command, stage in STAGES.values():
        what = tmp_path / "out" if command == "report" else file
        process = interrupted.start(command_line, stage, "ablate", command, str(what), folder=said)
        interrupted.interrupt(process, said)
        assert not list((tmp_path).rglob(".*.unfinished"))
    last = interrupted.start(command_line, None, "ablate", "run", str(file), folder=said)
    last.join(interrupted.SECONDS)
    assert last.exitcode == 0, (said / "stderr").read_text()
    grpo, gvpo = runs_of(read_grid(file))
    for run in (grpo, gvpo):
        assert run.training.is_finished()
        assert sorted(run.training.metrics()) == [1, 2, 3, 4, 5]
    # The second attempt saved step 2, and was interrupted after step 3.
    logged = [(grpo.training.folder / f"attempt-{n}.jsonl").read_text().splitlines() for n in (2, 3)]
    assert [json.loads(first)["step"] for first, *_ in logged] == [1, 3]
    assert [each.name for each in gvpo.training.folder.glob("attempt-*.log")] == ["attempt-1.log"]


@pytest.mark.ci
def test_while_the_task_is_prepared(tmp_path: Path) -> None:
    file = written(tmp_path, "+task=chain_sum", "task.seed=1")
    stage = "grpo_verl_ext.tasks.chain_sum.prepare:build_model"
    words, said, cache = ("ablate", "run", str(file)), tmp_path / "said", tmp_path / "cache"
    process = interrupted.start(command_line, stage, *words, folder=said, GRPO_VERL_EXT_CACHE=str(cache))
    interrupted.interrupt(process, said)
    assert [path.name for path in (cache / "chain_sum").iterdir()] == ["seed-1.lock"]
