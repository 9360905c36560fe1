"""``grpo-verl-ext doctor``: check the installation, or the configuration of a training."""
