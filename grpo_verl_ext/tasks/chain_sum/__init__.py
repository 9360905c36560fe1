"""The embedded task ``chain_sum``: sums of single digits, solved one addition at a time."""
