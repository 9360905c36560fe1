"""Test that the records name the keys of verl which their losses do not read."""

import inspect
import re
from types import SimpleNamespace

import pytest
import torch
from grpo_verl_ext.preflight.unread import advise_unread_clip
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import get_policy_loss_fn

from grpo_verl_ext.catalogue import ALGORITHMS, LOSSES, TokenLoss, VerlsLoss, verls
from grpo_verl_ext.catalogue.record import CLIPS
from grpo_verl_ext.verl_plugin.compose import composed

VERLS_LOSSES = {
    each.name: each
    for each in (
        *(algorithm.loss for algorithm in ALGORITHMS.values()),
        *(value for value in vars(verls).values() if isinstance(value, VerlsLoss)),
    )
    if isinstance(each, VerlsLoss)
}


@pytest.mark.parametrize("name", VERLS_LOSSES)
def test_a_loss_of_verls_reads_the_clips_that_are_not_listed_as_unread(name: str) -> None:
    source = inspect.getsource(get_policy_loss_fn(name))
    read = {key for key in CLIPS if re.search(rf"\b{key}\b", source)}
    assert read == {*CLIPS} - {*VERLS_LOSSES[name].unread}


@pytest.mark.parametrize(
    "loss",
    [each for each in LOSSES.values() if isinstance(each, TokenLoss) and each.unread],
    ids=lambda loss: loss.name,
)
def test_a_loss_needs_no_key_that_it_does_not_read(loss: TokenLoss) -> None:
    log_prob, old_log_prob, advantages = torch.tensor([[[-1.0, -2.0]], [[-1.5, -1.0]], [[1.0, 1.0]]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    without_clips = SimpleNamespace(
        policy_loss=OmegaConf.create(loss.options().model_dump() if loss.options else {})
    )
    statistic = () if loss.needs is None else (mask,)
    made = loss.per_token(log_prob, old_log_prob, advantages, mask, without_clips, *statistic)
    assert made.isfinite().all()


def test_a_clip_that_a_command_takes_away_is_none() -> None:
    config = composed(["+algo=gvpo", "~actor_rollout_ref.actor.clip_ratio_c"])
    assert list(advise_unread_clip(config)) == []
