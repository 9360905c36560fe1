"""Compare the variants of a grid: numbers of curves, paired tests, verdicts and power."""
