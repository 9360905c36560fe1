"""GVPO in a training: its targets for an anchor, and the groups of its loss."""
