"""Rule-based rewards: text in, number out, and never an exception for what a model wrote."""
