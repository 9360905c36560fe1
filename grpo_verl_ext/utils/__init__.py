"""Files, typed settings, plots and generation: what several parts of the package share."""
