"""Groups kept whole inside each optimizer step: the trainer, the worker and what passes between them."""
