"""Iterative GRPO (DeepSeekMath, arXiv 2402.03300, Algorithm 1): rounds of trainings by verl and by TRL."""
