"""Several rewards of a response, each on its own, for estimators that learn from each of them."""
