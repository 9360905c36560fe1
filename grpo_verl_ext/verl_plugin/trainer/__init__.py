"""In verl's trainer process."""
