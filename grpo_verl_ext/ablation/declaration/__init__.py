"""The grid file: variants, seeds, and what is claimed before the first run."""
