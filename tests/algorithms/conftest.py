"""Have Hypothesis draw few examples, without a deadline."""

from hypothesis import settings

settings.register_profile("few", derandomize=False, database=None, deadline=None, max_examples=50)
settings.load_profile("few")
