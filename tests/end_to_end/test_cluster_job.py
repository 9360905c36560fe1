"""verl's real trainer as a job of a Ray that was there before: `ablate --run --ray-address`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient
from ray_head import ray_head

from grpo_verl_ext.runs.metrics import read_metrics

pytestmark = pytest.mark.e2e

GRID = """
folder: {folder}
steps: 1
base:
  - +platform=cpu
  - +task=chain_sum
  - data.train_batch_size=8
  - actor_rollout_ref.actor.ppo_mini_batch_size=8
  - trainer.val_before_train=false
  - trainer.test_freq=-1
  - trainer.save_freq=-1
axes: {{algo: {{grpo: [+algo=grpo]}}}}
seeds: [1]
seed_overrides: ["task.seed={{seed}}"]
baseline: [grpo]
metrics: [critic/score/mean]
"""


def test_one_training_as_a_job(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (tmp_path / "grid.yaml").write_text(GRID.format(folder=folder))
    programs = Path(sys.executable).parent
    with ray_head(cpus=16, gpus=1, PATH=f"{programs}{os.pathsep}{os.environ['PATH']}") as address:
        finished = subprocess.run(
            [programs / "grpo-verl-ext", "ablate", tmp_path / "grid.yaml", "--run", "--ray-address", address],
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        (job,) = (job for job in JobSubmissionClient(address).list_jobs() if job.submission_id)
    assert job.status is JobStatus.SUCCEEDED
    assert "1/1" in finished.stdout

    run = folder / "grpo" / "seed-1"
    metrics = read_metrics([run / "attempt-1.jsonl"])
    assert sorted(metrics) == [1]
    # Ours: the plugin was loaded in the job's workers, too.
    assert 0 <= metrics[1]["actor/frac_zero_advantage"] < 1
    assert metrics[1]["actor/grad_norm"] > 0
    log = (run / "attempt-1.log").read_text()
    assert job.submission_id in log
    assert "TaskRunner" in log
