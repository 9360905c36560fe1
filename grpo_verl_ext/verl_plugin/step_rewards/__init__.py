"""Rewards for the steps of a response: from a reward function, through an agent loop, to the estimator."""
