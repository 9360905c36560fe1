"""Embedded tasks: data, tokenizer and starting model, generated locally without a download."""
