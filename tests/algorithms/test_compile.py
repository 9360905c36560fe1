"""Test that functions of the training step compile without graph breaks, so no host synchronisation."""

import torch

from grpo_verl_ext import (
    clipped_surrogate,
    k3,
    outcome_advantages,
    per_prompt_token,
    sequence_mean_token_mean,
    token_mean,
)
from grpo_verl_ext.algorithms.advantages import learnt_from
from grpo_verl_ext.algorithms.surrogate import token_events, token_log_ratio


def compiled(function):
    # aot_eager traces forward and backward as a real backend does, and needs no C++ compiler.
    return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)


def training_step(log_prob, old_log_prob, advantages, response_mask):
    clips = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
    loss = clipped_surrogate(log_prob, old_log_prob, advantages, response_mask, **clips)
    kl = k3(log_prob, old_log_prob, response_mask)
    log_ratio = token_log_ratio(log_prob.detach(), old_log_prob, response_mask)
    events = token_events(log_ratio, advantages, response_mask, **clips)
    reduced = sequence_mean_token_mean(loss, response_mask, 8, 2) + token_mean(kl, response_mask, 40, 2)
    return reduced, token_mean(events.clipped_low, response_mask, 40)


def test_the_training_step_is_one_graph():
    log_prob, old_log_prob, advantages = torch.randn(3, 4, 6, dtype=torch.float64)
    mask = torch.rand(4, 6) < 0.7
    results = []
    for step in (training_step, compiled(training_step)):
        leaf = log_prob.clone().requires_grad_()
        loss, metric = step(leaf, old_log_prob, advantages, mask)
        loss.backward()
        results.append((loss.detach(), metric, leaf.grad))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def estimate(rewards, response_mask, group):
    advantages = outcome_advantages(rewards, learnt_from(response_mask, 6), group)
    return per_prompt_token(advantages, response_mask, group)


def test_the_estimator_is_one_graph():
    rewards, group = torch.randn(6, 6, dtype=torch.float64), torch.tensor([0, 1, 0, 2, 1, 0])
    arguments = (rewards, torch.rand(6, 6) < 0.7, group)
    torch.testing.assert_close(compiled(estimate)(*arguments), estimate(*arguments), rtol=1e-12, atol=1e-12)
