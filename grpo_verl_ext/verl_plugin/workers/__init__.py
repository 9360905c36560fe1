"""In verl's worker processes."""
