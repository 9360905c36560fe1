"""Measurements beside a training: wanted responses, training rewards, seeds of requests."""
