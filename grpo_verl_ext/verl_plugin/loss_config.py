"""Options of the losses: the dataclass that verl builds from ``actor_rollout_ref.actor.policy_loss``."""

from dataclasses import dataclass

from verl.workers.config import PolicyLossConfig

from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.options import is_count


@dataclass
class LossConfig(PolicyLossConfig):  # type: ignore[misc]  # verl ships no types
    """verl's options and ours, chosen by ``policy_loss._target_``; verl's own class refuses unknown keys.

    Attributes:
        max_response_length: the response budget in tokens, for the metric ``actor/frac_truncated``; a loss
            sees rows padded to the longest of its micro-batch and cannot tell. Null: no such metric.
        gvpo_beta: β of the loss gvpo; presets refer to ``algorithm.grpo_ext.gvpo_beta``, its home.
    """

    max_response_length: int | None = None
    gvpo_beta: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a budget that is none; verl builds this in the driver, before any rollout."""
        budget = self.max_response_length
        if budget is not None and not is_count(budget):
            key = "actor_rollout_ref.actor.policy_loss.max_response_length"
            raise SettingError(
                key,
                budget,
                valid="an integer ≥ 1, or null for no actor/frac_truncated",
                fix=f"'{key}=${{data.max_response_length}}'",
            )
