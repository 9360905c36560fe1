"""verl's worker of actor and reference, whose engines share prompts."""

from typing import Any

from grpo_verl_ext.verl_plugin.shared_prompts.engine import share_prompts


class SharedPromptsWorkerMixin:
    """Chooses the engines of the actor and of the reference, mixed in before verl's ActorRolloutRefWorker."""

    actor_worker_cls: Any
    ref_worker_cls: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.actor_worker_cls = sharing_prompts(self.actor_worker_cls)
        self.ref_worker_cls = sharing_prompts(self.ref_worker_cls)


def sharing_prompts(worker: Any) -> Any:
    """Return verl's TrainingWorker, or a class on it, whose engine computes only what the loss reads."""

    class Sharing(worker):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            share_prompts(self.engine)

    return Sharing
