"""The mathematics of the algorithms in pure torch: groups, advantages, surrogate, KL, aggregation."""
