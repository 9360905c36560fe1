"""Example of a loss of your own: a policy gradient with a soft limit on the ratio, for GRPO's advantages.

export PYTHONPATH=examples/losses VERL_USE_EXTERNAL_MODULES=my_losses
python3 -m verl.trainer.main_ppo +algo@_global_=grpo actor_rollout_ref.actor.policy_loss.loss_mode=soft_ratio
grpo-verl-ext invariance --loss soft_ratio --loss-agg-mode seq-mean-token-mean
"""

from grpo_verl_ext.verl_plugin.own_loss import token_loss


@token_loss
def soft_ratio(log_prob, old_log_prob, advantages, response_mask, config):
    """−A · tanh(log ratio): near ratio 1 the policy gradient; far from it a smaller one, but never 0."""
    return -advantages * (log_prob - old_log_prob).tanh()
