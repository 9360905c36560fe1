"""Several rewards of a response, each on its own, for the estimator ``gdpo_outcome``."""
