"""The worker's side of the reference refresh."""

from typing import Any

from verl.single_controller.base.decorator import Dispatch, register

from grpo_verl_ext.verl_plugin.workers import reference_refresh as refresh


class ReferenceSyncWorkerMixin:
    """Methods for a worker that holds both the actor and the reference."""

    actor: Any
    ref: Any

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]  # verl ships no types
    def refresh_reference(self, mixup_alpha: float) -> None:
        """Move the reference towards the policy: `refresh.mix_in`."""
        refresh.mix_in(self.ref.engine.module, self.actor.engine.module, mixup_alpha)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_reference(self, folder: str) -> None:
        """Write the reference: `refresh.save`."""
        refresh.save(self.ref.engine.module, folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def load_reference(self, folder: str) -> None:
        """Read the reference: `refresh.load`."""
        refresh.load(self.ref.engine.module, folder)
