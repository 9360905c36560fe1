"""What a loss takes from the whole mini-batch: statistics of it, whole groups in it, and their ways there."""
