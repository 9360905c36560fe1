"""GVPO in a training: whole groups in each update, their drift, and the loss."""
