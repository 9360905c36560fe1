"""What verl has no hook for: each file patches one function of somebody else's, and says why."""
