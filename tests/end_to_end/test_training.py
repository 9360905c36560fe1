"""Test verl's whole pipeline on a machine without GPU, with our registered algorithms."""

import re
from pathlib import Path

import pytest
from limits import largest
from ray_cluster import QUIET, Node, ray_cluster
from verl_runs import OURS, UNTESTED, Run, train

pytestmark = pytest.mark.e2e


ROLLOUT = ("skip.rollout_tq.enable=true", "skip.rollout_tq.steps=[1]", "trainer.save_freq=-1")
"""verl keeps the first rollout in a folder, and takes it from there where it finds it."""


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"skip.rollout_tq.dump_dir={tmp_path_factory.mktemp('rollouts')}"


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory, rollouts: str) -> Run:
    """Preset gvpo: four updates a rollout, dynamic batching, groups over two FSDP2 ranks, shared prompts."""
    return train(
        *("trainer.n_gpus_per_node=2", "trainer.total_training_steps=6", "trainer.test_freq=6"),
        *(*ROLLOUT, rollouts),
        algo="gvpo",
        folder=tmp_path_factory.mktemp("two"),
        program=OURS,
    ).require_success()


def test_gvpo_on_two_ranks(two_ranks: Run) -> None:
    assert len(set(re.findall(r"WorkerDict pid=(\d+)", two_ranks.log.read_text(errors="replace")))) == 2
    assert largest(map(abs, two_ranks.series("rollout_corr/kl"))) < 1e-4
    assert largest(two_ranks.series("actor/gvpo_weight_sum")) <= 1e-5
    drifts = two_ranks.series("actor/gvpo_drift")
    assert all(drift > 1e-3 for drift in drifts), "the later updates saw a policy that had moved"
    before, after = two_ranks.series("val-core/chain_sum/acc/mean@1")
    # 512 prompts sampled once each: the standard error of the difference is 0.03.
    assert after > before + 0.1


@pytest.mark.long
def test_the_first_rollout_again_on_one_rank(two_ranks: Run, rollouts: str, tmp_path: Path) -> None:
    """By verl's passes. Targets of patches have moved, as in a later verl: warned about, and not missed."""
    one = train(
        *("trainer.total_training_steps=1", *UNTESTED, *ROLLOUT, rollouts),
        "algorithm.grpo_ext.shared_prompts=false",
        algo="gvpo",
        folder=tmp_path,
        VERL_USE_EXTERNAL_MODULES="moved_targets",
        PYTHONPATH=str(Path(__file__).parent / "moved"),
    ).require_success()
    said = one.log.read_text(errors="replace")
    for name in ("lost_parts", "engine_death"):
        assert f"grpo_verl_ext: warning: the patch {name} of verl." in said
    same_updates(one, two_ranks)


@pytest.mark.long
def test_the_first_rollout_again_on_two_nodes(two_ranks: Run, rollouts: str, tmp_path: Path) -> None:
    """Of a Ray cluster, with a rank each."""
    # What the processes of a cluster find in their environment is the cluster's, not the driver's.
    logger = {"VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl")}
    with ray_cluster(Node("head", 16, 1, logger), Node("second", 16, 1, logger)) as cluster:
        nodes = train(
            *("trainer.nnodes=2", "trainer.total_training_steps=2", *UNTESTED, *ROLLOUT, rollouts),
            algo="gvpo",
            folder=tmp_path,
            RAY_ADDRESS=cluster.address,
            **QUIET,
        ).require_success()
    assert sorted(nodes.metrics) == [1, 2]
    same_updates(nodes, two_ranks)


def same_updates(one: Run, other: Run) -> None:
    """Of the first step, from the same rollout: means over its updates; single precision, other sums."""
    for name in ("pg_loss", "grad_norm", "gvpo_loss", "gvpo_var_term", "gvpo_cov_term", "gvpo_drift"):
        (first, *_), (wanted, *_) = (run.series(f"actor/{name}") for run in (one, other))
        assert first == pytest.approx(wanted, rel=1e-4), name
