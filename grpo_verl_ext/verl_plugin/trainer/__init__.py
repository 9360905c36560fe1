"""Code that runs in verl's trainer process."""
