"""``grpo-verl-ext migrate``: put a preset into a shell script that starts verl's trainer."""
