"""A reference policy that follows the trained one, as iterative GRPO asks."""
