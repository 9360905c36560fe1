"""The trainer's side of step rewards."""

from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from grpo_verl_ext.verl_plugin.rollout_batch import nested
from grpo_verl_ext.verl_plugin.step_rewards.collected import collected, step_metrics
from grpo_verl_ext.verl_plugin.step_rewards.steps import STEPS


class ShowsSteps(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """The estimator ``grpo_process`` sees the steps of the responses, the metrics their rewards."""

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Lay the steps down around verl's own call of the estimator."""
        if self.config.algorithm.adv_estimator != "grpo_process":
            return super()._compute_advantage(batch, metrics)
        steps = collected(batch, nested(batch, "extra_fields"))
        metrics.update(step_metrics(steps, responses=len(batch)))
        with STEPS.during(steps):
            return super()._compute_advantage(batch, metrics)
