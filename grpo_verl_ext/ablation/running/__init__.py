"""Check and train the runs of a grid, and read what they have left."""
