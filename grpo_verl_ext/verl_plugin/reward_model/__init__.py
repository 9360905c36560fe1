"""Rewards by rule and by a reward model together: ``reward.reward_manager.name=rule_and_model``."""
