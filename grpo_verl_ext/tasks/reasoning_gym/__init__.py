"""Tasks of the package reasoning-gym as data for verl; `grpo_verl_ext.rewards.reasoning_gym` scores them."""
