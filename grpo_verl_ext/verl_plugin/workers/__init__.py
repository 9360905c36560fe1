"""Code that runs in verl's worker processes."""
