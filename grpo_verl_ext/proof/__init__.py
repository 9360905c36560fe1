"""Measure how much a loss changes when the mini-batch is cut differently."""
