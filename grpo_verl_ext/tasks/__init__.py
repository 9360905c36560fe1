"""Embedded tasks: data, tokenizer and starting model, made on the spot and without a download."""
