"""Supervised learning as a loss of verl's trainer: for stored responses, whose log-prob it raises.

export PYTHONPATH=examples/losses VERL_USE_EXTERNAL_MODULES=supervised
python3 -m verl.trainer.main_ppo +algo@_global_=grpo \
  actor_rollout_ref.actor.policy_loss.loss_mode=supervised \
  '++algorithm.grpo_ext.stored_responses={source: data, share: 1}' \
  actor_rollout_ref.rollout.calculate_log_probs=false …
"""

from grpo_verl_ext.verl_plugin.own_loss import token_loss


@token_loss
def supervised(log_prob, old_log_prob, advantages, response_mask, config):
    """−log π of each token, whatever its reward."""
    return -log_prob
