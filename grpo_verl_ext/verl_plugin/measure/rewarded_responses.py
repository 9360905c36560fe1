"""Measure how well GVPO's implicit reward fits the reward where nothing is trained on.

``algorithm.grpo_ext.rewarded_responses``: responses in a file, with their rewards, that stay the same for the
whole training. ``actor/gvpo_fit_slope`` is measured on the responses that an update trains on, sampled by the
policy of the moment; the theorem is about all responses.
"""

from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.debug import marked_timer

from grpo_verl_ext.algorithms import gvpo_terms, ragged
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.options import is_number
from grpo_verl_ext.verl_plugin.config import REWARDED_RESPONSES, Options, RewardedResponseOptions
from grpo_verl_ext.verl_plugin.measure.fixed_responses import (
    FixedResponse,
    at,
    check_rows,
    measured,
    prompts,
)


class RewardedResponseMixin(PPOTrainer):  # type: ignore[misc]  # verl ships no types
    """Log ``rewarded_response/fit_slope`` and ``…/fit_r2`` after the updates of every ``freq``-th step.

    Slope and R² of β log(π/π_ref) regressed on the reward within prompts, `gvpo_terms.fit_within_prompts`.
    Both are 1 where π is π_ref e^{R/β} on these responses, up to a factor for each prompt.
    """

    def _init_dataloader(self) -> None:
        """Read the rows next to verl's data, so that a wrong one is named before models are loaded."""
        super()._init_dataloader()
        options = Options.of_training(self.config.algorithm).rewarded_responses
        self.rewarded = None if options is None else RewardedRows(options, self.config)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Run verl's step, then measure."""
        batch = super().step(metrics, timing_raw)
        options = Options.of_training(self.config.algorithm).rewarded_responses
        if options is None or self.global_steps % options.freq:
            return batch
        with marked_timer("rewarded_response", timing_raw):
            slope, r2 = self._measure_fit()
        metrics.update({"rewarded_response/fit_slope": slope, "rewarded_response/fit_r2": r2})
        return batch

    def _measure_fit(self) -> tuple[float, float]:
        assert self.rewarded is not None
        rows, models = self.rewarded.rows, self.config.actor_rollout_ref
        by_policy = self.actor_rollout_wg.compute_log_prob
        policy = measured(self, rows, by_policy, models.rollout)
        if self.ref_in_actor:
            reference = measured(self, rows, by_policy, models.rollout, no_lora_adapter=True)
        else:
            reference = measured(self, rows, self.ref_policy_wg.compute_ref_log_prob, models.ref)
        return gvpo_terms.fit_within_prompts(
            _of_responses(*policy) - _of_responses(*reference),
            self.rewarded.rewards,
            self.rewarded.prompt,
            models.actor.policy_loss.gvpo_beta,
        )


class RewardedRows:
    """The responses of the files, with their rewards and the number of their prompt."""

    def __init__(self, options: RewardedResponseOptions, config: DictConfig) -> None:
        """Read the first rows of the files.

        Raises:
            SettingError: no row, a row without responses or without a number for each, a response beyond the
                budget of the rollout, or a model that takes more than text.
        """
        self.rows: list[FixedResponse] = []
        rewards: list[float] = []
        numbers: list[int] = []
        for number, (row, prompt_ids, encode) in enumerate(prompts(options, REWARDED_RESPONSES, config)):
            responses, own = _list_at(row, options.responses_key), _list_at(row, options.rewards_key)
            if not own or len(responses) != len(own) or not all(map(is_number, own)):
                raise _not_rewarded(number, options, responses, own)
            for response in responses:
                is_text = isinstance(response, str)
                ids = encode(response) if is_text else [int(each) for each in response]
                self.rows.append(FixedResponse(prompt_ids, ids))
            rewards += map(float, own)
            numbers += [number] * len(own)
        check_rows(self.rows, options, REWARDED_RESPONSES, config.data)
        self.rewards = torch.tensor(rewards, dtype=torch.float64)
        self.prompt = torch.tensor(numbers)


def _of_responses(log_prob: Any, mask: Any) -> Tensor:
    """Return log π(y) of each response: (N,)."""
    return ragged.row_sums(log_prob.values(), mask.values(), mask.offsets())


def _list_at(row: Any, dotted_key: str) -> list[Any]:
    found = at(row, dotted_key)
    return [] if found is None or isinstance(found, str) else list(found)


def _not_rewarded(
    number: int, options: RewardedResponseOptions, responses: list[Any], rewards: list[Any]
) -> SettingError:
    key = f"{REWARDED_RESPONSES}.rewards_key"
    return SettingError(
        key,
        options.rewards_key,
        why=f"row {number} of {REWARDED_RESPONSES}.files has {len(responses)} responses at "
        f"{options.responses_key} and {rewards!r} there",
        valid="a number for each response",
        fix=f"{key}=<another key>",
    )
