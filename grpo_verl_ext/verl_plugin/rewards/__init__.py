"""Rewards: the manager with a learned one, rewards of steps, several rewards of a response; their checks."""
