"""Pass step rewards to the estimator ``grpo_process``, the metrics and the rollout dump."""

from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from grpo_verl_ext import catalogue
from grpo_verl_ext.verl_plugin.batch.fields import nested
from grpo_verl_ext.verl_plugin.steps.collect import collected, dumped_columns, step_metrics
from grpo_verl_ext.verl_plugin.wire import DUMPED_COLUMNS, STEPS


class ProcessSupervisionMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Pass the steps of responses to the estimator ``grpo_process``, metrics and dump."""

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Set the steps while verl calls the estimator."""
        if not catalogue.learns_from_steps(self.config):
            return super()._compute_advantage(batch, metrics)
        steps = collected(batch, nested(batch, "extra_fields"))
        metrics.update(step_metrics(steps, responses=len(batch)))
        with STEPS.set(steps):
            return super()._compute_advantage(batch, metrics)

    def _log_rollout_data(self, batch: Any, *args: Any, **kwargs: Any) -> None:
        """Set the steps' columns while verl dumps a training step."""
        if not catalogue.learns_from_steps(self.config):
            super()._log_rollout_data(batch, *args, **kwargs)
            return
        with DUMPED_COLUMNS.set(dumped_columns(batch, nested(batch, "extra_fields", "advantages"))):
            super()._log_rollout_data(batch, *args, **kwargs)

    def _dump_generations(self, *, reward_extra_infos_dict: dict[str, Any], **kwargs: Any) -> None:
        """Add the steps' columns to verl's, by ``uid``."""
        added = DUMPED_COLUMNS.get() or {}
        keys = reward_extra_infos_dict.get("uid", [])
        columns = {name: [of_key[key] for key in keys] for name, of_key in added.items()}
        super()._dump_generations(reward_extra_infos_dict=reward_extra_infos_dict | columns, **kwargs)
