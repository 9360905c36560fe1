"""One file per framework: how its own loss code is called. None computes a loss itself."""
