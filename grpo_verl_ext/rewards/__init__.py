"""Rewards: text in, number out; a rule never raises an exception for what a model wrote."""
