"""Measure how probable wanted responses are under the policy: ``algorithm.grpo_ext.gold_responses``.

Teacher forcing gives the exact probability of one response, where sampling estimates it; right answers by
other responses are missing from it.
"""

from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.debug import marked_timer

from grpo_verl_ext.algorithms import ragged
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.verl_plugin.config import GOLD_RESPONSES, GoldResponseOptions, Options
from grpo_verl_ext.verl_plugin.measure.fixed_responses import (
    FixedResponse,
    at,
    check_rows,
    measured,
    prompts,
)
from grpo_verl_ext.verl_plugin.measure.training_rewards import reported_of_sampled, right_by_other_responses


class GoldResponseMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Log ``gold_response/…`` after the updates of every ``freq``-th step.

    ``probability`` is the mean over rows of exp Σ_t log π(y_t), ``log_prob`` that of Σ_t log π(y_t), in nats,
    both at ``rollout.temperature``. ``right``, where the reward function reports ``acc`` and ``gold``, is
    ``probability`` plus the share of the step's sampled responses that are right and not the wanted one: an
    estimate of the probability of a right answer.
    """

    def _init_dataloader(self) -> None:
        """Read the rows next to verl's data, so that a wrong one is named before models are loaded."""
        super()._init_dataloader()
        options = Options.of_training(self.config.algorithm).gold_responses
        self.gold_rows = [] if options is None else read_rows(options, self.config)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Run verl's step, then measure."""
        batch = super().step(metrics, timing_raw)
        options = Options.of_training(self.config.algorithm).gold_responses
        if options is None or self.global_steps % options.freq:
            return batch
        with marked_timer("gold_response", timing_raw):
            probability, log_prob = self._measure_gold_rows()
        metrics.update({"gold_response/probability": probability, "gold_response/log_prob": log_prob})
        otherwise = right_by_other_responses(reported_of_sampled(batch))
        if otherwise is not None:
            metrics["gold_response/right"] = probability + otherwise
        return batch

    def _measure_gold_rows(self) -> tuple[float, float]:
        compute = self.actor_rollout_wg.compute_log_prob
        log_prob, mask = measured(self, self.gold_rows, compute, self.config.actor_rollout_ref.rollout)
        means = ragged.response_probability(log_prob.values(), mask.values(), mask.offsets())
        return means[0].item(), means[1].item()


def read_rows(options: GoldResponseOptions, config: DictConfig) -> list[FixedResponse]:
    """Read the first rows of the files and tokenize them as verl does in a rollout of one turn.

    Raises:
        SettingError: no row, a row without the wanted response, a row beyond the budgets of the rollout, or a
            model that takes more than text.
    """
    rows = []
    for number, (row, prompt_ids, encode) in enumerate(prompts(options, GOLD_RESPONSES, config)):
        text = at(row, options.response_key)
        if not isinstance(text, str):
            key = f"{GOLD_RESPONSES}.response_key"
            raise SettingError(
                key,
                options.response_key,
                why=f"row {number} of {GOLD_RESPONSES}.files has {text!r} there",
                valid="a text in every row",
                fix=f"{key}=<another key>",
            )
        rows.append(FixedResponse(prompt_ids, encode(text)))
    check_rows(rows, options, GOLD_RESPONSES, config.data)
    return rows
