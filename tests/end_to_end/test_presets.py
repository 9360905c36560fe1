"""Each algorithm preset in verl's real trainer, for the few steps that show its parts at work."""

import pytest
from conftest import Train

pytestmark = pytest.mark.e2e

SHORT = ("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1")


@pytest.mark.parametrize("algo", ["bnpo", "dr_grpo"])
def test_a_preset_takes_its_steps(algo: str, train: Train) -> None:
    run = train("trainer.total_training_steps=2", *SHORT, algo=algo).require_success()
    assert sorted(run.metrics) == [1, 2]
    assert min(run.series("actor/grad_norm")) > 0
    assert "actor/kl_loss" not in run.metrics[1]  # neither has a reference
    assert all(0 <= share <= 1 for share in run.series("actor/frac_zero_advantage"))


def test_dapo_with_all_its_parts(train: Train) -> None:
    """Dynamic sampling on raw accuracy, clip-higher, overlong punishment and filtering."""
    run = train("trainer.total_training_steps=2", *SHORT, algo="dapo").require_success()
    # Eight responses to a long sum, each right about once in eight, are often all wrong; such groups go.
    assert max(run.series("training/filter_groups/evicted_samples")) > 0
    # A group that was kept has right and wrong answers: only a truncated response has no advantage.
    assert max(run.series("actor/frac_zero_advantage")) < 0.1
    assert min(run.series("actor/grad_norm")) > 0
