"""The mathematics, torch in and torch out: groups, advantages, surrogate, KL, aggregation."""
