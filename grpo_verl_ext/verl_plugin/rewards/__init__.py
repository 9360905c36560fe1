"""The package's reward manager, its servers and their checks."""
