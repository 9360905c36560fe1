"""Measure the KL to the reference and refresh it from the policy: the part in the trainer."""

from typing import Any

import torch
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from grpo_verl_ext.algorithms import kl
from grpo_verl_ext.verl_plugin.batch.fields import actor_folder, nested, were_sampled
from grpo_verl_ext.verl_plugin.config import Options


class ReferenceSyncTrainerMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Log the KL to the reference by three estimators; refresh it every ``ref_model_sync_steps`` steps.

    Iterative GRPO, arXiv 2402.03300 Algorithm 1, sets π_ref ← π_θ between iterations (α = 1).
    """

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Run verl's step, then refresh, so that a checkpoint of this step has the new reference."""
        batch = super().step(metrics, timing_raw)
        options = Options.from_config(self.config.algorithm)
        if options.ref_model_sync_steps and self.global_steps % options.ref_model_sync_steps == 0:
            self.actor_rollout_wg.refresh_reference(options.ref_model_mixup_alpha)
        return batch

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Add the KL to the reference before the update, by k1, k2 and k3, means over sampled tokens."""
        batch = super()._compute_ref_log_prob(batch, metrics)
        if not Options.from_config(self.config.algorithm).ref_kl_metrics:
            return batch
        rows = nested(batch, "old_log_probs", "ref_log_prob", "response_mask", "extra_fields")
        sampled = torch.tensor(were_sampled(batch, rows))
        if sampled.any():
            mask = rows["response_mask"]
            counts = mask.values() * sampled.repeat_interleave(mask.offsets().diff())
            means = kl.token_means(rows["old_log_probs"].values(), rows["ref_log_prob"].values(), counts)
            metrics.update({f"actor/ref_kl_{name}": mean.item() for name, mean in means.items()})
        return batch

    def _save_checkpoint(self) -> None:
        """Save the reference beside the actor's shards, before verl's marker of a complete step."""
        if Options.from_config(self.config.algorithm).ref_model_sync_steps:
            self.actor_rollout_wg.save_reference(str(actor_folder(self) / "reference"))
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        refreshes = Options.from_config(self.config.algorithm).ref_model_sync_steps
        if refreshes and self.global_steps > 0:
            self.actor_rollout_wg.load_reference(str(actor_folder(self) / "reference"))
