"""Code that runs in the processes of verl's rollout."""
