"""The embedded task: sums of single digits, reasoned about one addition at a time."""
