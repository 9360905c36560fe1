"""``grpo-verl-ext train`` and ``show``: a training of a preset by verl's ``main_ppo``, and its values."""
