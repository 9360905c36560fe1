"""GVPO around a teacher: log-probs of whole responses from verl's teacher servers, in any tokenizer."""
