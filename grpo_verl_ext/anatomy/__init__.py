"""``grpo-verl-ext anatomy``: what each variant would do with a dump of real rollouts."""
