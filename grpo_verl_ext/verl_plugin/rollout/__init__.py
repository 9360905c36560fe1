"""In the processes of verl's rollout."""
