"""``grpo-verl-ext anatomy``: the weights that each algorithm would give the tokens of real rollouts."""
