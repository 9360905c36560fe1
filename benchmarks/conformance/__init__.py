"""Compare the policy losses of RL frameworks on one ragged mini-batch, each through its own loss code.

``python -m benchmarks.conformance`` from the root of the repository. ``batch`` and ``oracle`` say what is
asked and what the papers answer; ``adapters/`` has one short file per framework that says how it is called;
``harness`` runs an adapter inside the environment of its framework; ``comparison`` and ``page`` turn
gradients into docs/conformance.md.
"""
