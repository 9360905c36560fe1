"""The feature ``shared_prompts``: a prompt is computed once for all its responses."""
