"""Fields of verl's rollout batch, sessions and checkpoints, which the features' trainers share."""
