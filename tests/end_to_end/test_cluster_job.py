"""Test verl's real trainer with preset dapo as a job of a running Ray: `ablate run --ray-address`."""

import os
import sys
from pathlib import Path

import pytest
from processes import run_program
from ray.job_submission import JobStatus, JobSubmissionClient
from ray_cluster import ray_head

from grpo_verl_ext.runs.verl_run import read_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

GRID = """
folder: {folder}
steps: 2
base:
  - +platform=cpu
  - +task=chain_sum
  - trainer.val_before_train=false
  - trainer.test_freq=-1
  - trainer.save_freq=-1
  - actor_rollout_ref.rollout.n=4
axes: {{algo: {{dapo: [+algo=dapo]}}}}
seeds: [1]
seed_overrides: ["task.seed={{seed}}"]
baseline: [dapo]
metrics: [critic/score/mean]
"""


def test_dapo_with_all_its_parts_as_a_job(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (tmp_path / "grid.yaml").write_text(GRID.format(folder=folder))
    programs = Path(sys.executable).parent
    with ray_head(cpus=16, gpus=1, PATH=f"{programs}{os.pathsep}{os.environ['PATH']}") as address:
        words = ("ablate", "run", tmp_path / "grid.yaml", "--ray-address", address)
        finished = run_program([programs / "grpo-verl-ext", *words], timeout=800)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        (job,) = (job for job in JobSubmissionClient(address).list_jobs() if job.submission_id)
    assert job.status is JobStatus.SUCCEEDED
    assert "2/2" in finished.stdout

    run = folder / "dapo" / "seed-1"
    metrics = read_metrics([run / "attempt-1.jsonl"])
    assert sorted(metrics) == [1, 2]
    # A response is right about once in four, so all four of a prompt are wrong for three prompts in ten: that
    # none of at least 32 prompts goes has a chance of 1e-5. verl logs the number where there is one.
    assert sum(values.get("training/filter_groups/evicted_samples", 0) for values in metrics.values()) > 0
    for values in metrics.values():
        # A group that was kept has right and wrong answers: only a truncated response has no advantage. The
        # metric is ours: the plugin was loaded in the job's workers, too.
        assert values["actor/frac_zero_advantage"] < 0.1
        assert values["actor/grad_norm"] > 0
        assert 0 <= values["actor/frac_truncated"] < 0.2
    log = (run / "attempt-1.log").read_text()
    assert job.submission_id in log
    assert "TaskRunner" in log
