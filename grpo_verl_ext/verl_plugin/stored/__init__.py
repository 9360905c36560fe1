"""Train on stored responses beside sampled ones."""
