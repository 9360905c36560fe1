"""Rewards of steps, and several rewards of a response, for estimators that learn from them."""
