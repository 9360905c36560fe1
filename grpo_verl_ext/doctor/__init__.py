"""``grpo-verl-ext doctor``: is the plugin there, and is a configuration what it is called?"""
