"""Process supervision: rewards of steps on their way from the agent loop to the estimator."""
