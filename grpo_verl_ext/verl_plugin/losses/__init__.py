"""Losses of a user's own."""
