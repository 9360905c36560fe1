"""verl's actor worker with a teacher, but without verl's loss for it: GVPO's is the whole loss."""

from typing import Any


class WithoutVerlsLoss:
    """Part of a worker of verl to which distillation is not enabled; only the servers are."""

    def __init__(self, *args: Any, distillation_config: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        super().__init__(*args, **kwargs)
