"""Rounds of iterative GRPO: DeepSeekMath, arXiv 2402.03300, Algorithm 1, each part by verl or TRL itself."""
