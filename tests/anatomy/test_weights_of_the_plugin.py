"""Test that `anatomy` weighs the registered estimators and losses."""

import pytest
import torch
from group_rows import at_first_update
from mini_batches import actor_config

from grpo_verl_ext.anatomy.weights import COMPARED_ALGORITHMS, StepResponses, token_weights
from grpo_verl_ext.catalogue import LOSSES, PRESETS
from grpo_verl_ext.proof.invariance import OUR_CASES
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.algorithms import ESTIMATOR_FUNCTIONS, LOSS_FUNCTIONS

GROUPS = ["a", "b", "b", "a", "a", "c", "b", "c", "a", "c", "b", "c"]
SCORES = [0.0, 1.0, 0.5, 2.0, 0.0, 1.0, 1.0, 1.0, 0.25, 1.0, 0.0, 1.0]
LENGTHS = [3, 7, 1, 2, 9, 4, 4, 5, 6, 1, 2, 8]


WEIGHED = [case for case in OUR_CASES if case.name in LOSS_FUNCTIONS]


def test_every_variant_is_a_registered_loss() -> None:
    of_statistics = {"clip_cov_mini_batch", "kl_cov_mini_batch"}
    assert [case.name for case in WEIGHED] == [name for name in LOSS_FUNCTIONS if name not in of_statistics]


def test_every_preset_is_weighed_but_those_that_need_more_than_scores() -> None:
    of_log_probs = {"clip_cov", "kl_cov"}
    left_out = {"gdpo", "grpo_process", "gvpo_distill", "ppo", "ppo_kl", *of_log_probs}
    assert set(PRESETS) - set(COMPARED_ALGORITHMS) == left_out
    assert {name for name in LOSS_FUNCTIONS if name == "gvpo" or LOSSES[name].needs is None} <= set(
        COMPARED_ALGORITHMS
    )


@pytest.mark.parametrize("case", WEIGHED, ids=lambda case: case.name)
def test_the_gradient_of_the_registered_loss_with_the_registered_advantages(case) -> None:
    step = StepResponses.of(SCORES, LENGTHS, GROUPS)
    mask = step.mask().long()
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(step.size), step.lengths - 1] = step.rewards
    estimator = ESTIMATOR_FUNCTIONS.get(case.name, ESTIMATOR_FUNCTIONS["grpo_outcome"])
    centred = case.name in ("dr_grpo", "gvpo", "kimi", "topr")
    no_std = {"grpo_ext": {"scale_rewards": "none"}} if centred else {}
    advantages, _ = estimator(rewards, mask, GROUPS, no_std)

    log_prob = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    config = actor_config(case)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=step.tokens, global_batch_size=step.size)
    with wire.GROUPS.set(at_first_update(step.size, config.rollout_n)):
        loss, _ = LOSS_FUNCTIONS[case.name](
            old_log_prob=log_prob.detach(),
            log_prob=log_prob,
            advantages=advantages,
            response_mask=mask,
            config=config,
        )
    (gradient,) = torch.autograd.grad(loss, log_prob)

    # One weight for each token of a response, in the same ratios; the local batch is the whole step.
    weights = token_weights(case.name, step, micro_batch_size=step.size)
    spread = weights.unsqueeze(-1) * mask
    scale = gradient.norm() / spread.norm()
    assert spread.norm() > 0
    torch.testing.assert_close(
        -gradient, scale * spread, rtol=0, atol=1e-6 * float(gradient.abs().max()) + 1e-9
    )
