"""Test GVPO on responses that its policy did not write: verl's whole pipeline."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from limits import largest
from verl_runs import UNTESTED, train

from grpo_verl_ext.tasks.chain_sum.problems import response
from grpo_verl_ext.tasks.folders import read_parquet
from grpo_verl_ext.utils.files import cache_root

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TWO_RANKS = (
    *("trainer.n_gpus_per_node=2", "trainer.total_training_steps=3", "trainer.save_freq=-1"),
    *UNTESTED,
)
BEST_SCORE = 2.8
"""Of the embedded task: right, in the wanted format, each step right."""


def with_wanted_responses(file: Path, to: Path) -> Path:
    """The training data with the wanted response four times in ``extra_info.responses``."""
    rows = read_parquet(file)
    for row in rows:
        row["extra_info"]["responses"] = [response(tuple(row["extra_info"]["terms"]))] * 4
    pq.write_table(pa.Table.from_pylist(rows), to)
    return to


def test_half_of_the_responses_given_and_the_others_a_step_old(tmp_path: Path) -> None:
    """``colocate_async`` with a batch of lead; the anchor is the policy at the start of each step."""
    data = with_wanted_responses(
        cache_root() / "chain_sum" / "seed-1" / "train.parquet", tmp_path / "train.parquet"
    )
    run = train(
        *TWO_RANKS,
        f"data.train_files={data}",
        "trainer.v1.trainer_mode=grpo_ext_colocate_async",
        *("trainer.v1.colocate_async.num_warmup_batches=1", "+algorithm.grpo_ext.stored_responses.share=0.5"),
        "actor_rollout_ref.rollout.calculate_log_probs=false",
        algo="gvpo",
        folder=tmp_path,
    ).require_success()
    assert run.series("stored/share") == [0.5] * 3
    assert run.series("stored/reward") == pytest.approx([BEST_SCORE] * 3)
    assert largest(run.series("sampled/reward")) < BEST_SCORE
    assert run.series("training/off_policy/trajectory_staleness_worst/max")[-1] >= 1
    assert largest(run.series("actor/gvpo_weight_sum")) <= 1e-5
    assert all(drift > 1e-3 for drift in run.series("actor/gvpo_drift"))
    first, *_, last = run.series("stored/log_prob")
    assert last > first, "the policy learns the wanted responses"
