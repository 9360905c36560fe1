"""GVPO in a training: whole groups in each update, their drift, and the loss."""

# verl's registries first: their import registers the catalogue, which imports this package's modules whole.
import verl.trainer.ppo.core_algos  # noqa: F401
