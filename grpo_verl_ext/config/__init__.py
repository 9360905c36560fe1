"""Presets for verl's command line (``+algo=…``, ``+platform=cpu``, ``+task=chain_sum``): YAML deltas only."""
