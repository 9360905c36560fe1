"""On which of verl's engines the reference can follow the policy."""

REFRESH_ENGINES = ("fsdp", "fsdp2")
"""Values of ``actor.strategy`` under which policy and reference are sharded alike, and it was tested."""
