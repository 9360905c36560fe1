"""What a configuration trains: −∂L/∂log π of each token, through verl's own functions in verl's order.

KL in the reward, rollout correction, advantages, the actor's dataclass, ``ppo_loss``, backward: as
``PPOTrainer._compute_advantage`` and the workers call them, on `Rollout.synthetic`. No Ray, model or GPU is
needed.
"""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo.core_algos import get_kl_controller
from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils.config import omega_conf_to_dataclass

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms.aggregation import sequence_sums
from grpo_verl_ext.catalogue.record import CLIPS
from grpo_verl_ext.catalogue.requires import OUR_MODES, runs_v1
from grpo_verl_ext.proof.batch import MAX_RESPONSE_LENGTH, ROWS_PER_PROMPT, Rollout
from grpo_verl_ext.utils import keys
from grpo_verl_ext.utils.keys import ACTOR, POLICY_LOSS, ROLLOUT, SCALE_FACTOR, SECTION, setting
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.config import Options
from grpo_verl_ext.verl_plugin.estimators import anchored_targets

_BUDGET = "data.max_response_length"
_BOUNDS = (*(f"{ACTOR}.{name}" for name in CLIPS), f"{POLICY_LOSS}.off_policy_mask_threshold")


def changed(config: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """Return a copy with other values of some keys, and without those whose value is ``...``."""
    copied: DictConfig = pickle.loads(pickle.dumps(config))  # in half the time of a deep copy
    with open_dict(copied):
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            if value is ...:
                OmegaConf.select(copied, section).pop(name, None)
            else:
                OmegaConf.update(copied, key, value, force_add=True)
    return copied


def of_probe(config: DictConfig) -> DictConfig:
    """Return a copy of a configuration with the synthetic rollout's group size and response budget.

    Numbers of tokens keep their ratio to the budget.
    """
    n, budget = setting(config, f"{ROLLOUT}.n"), setting(config, _BUDGET)
    values = {
        f"{ACTOR}.ppo_micro_batch_size": None,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1,
        f"{ROLLOUT}.n": ROWS_PER_PROMPT,
        _BUDGET: MAX_RESPONSE_LENGTH,
    }
    if setting(config, f"{ACTOR}.rollout_n", n) == n:
        values[f"{ACTOR}.rollout_n"] = ROWS_PER_PROMPT
    for key in (SCALE_FACTOR, f"{SECTION}.max_response_length", f"{POLICY_LOSS}.max_response_length"):
        if isinstance(value := setting(config, key), int | float):
            scaled = value / budget * MAX_RESPONSE_LENGTH
            values[key] = scaled if key == SCALE_FACTOR else max(1, round(scaled))
    return changed(config, values)


def rollout_for(*configs: DictConfig) -> Rollout:
    """Return a rollout with rows beside every bound of these configurations."""
    bounds = [setting(config, key) for config in configs for key in _BOUNDS]
    rewards = [len(setting(config, "algorithm.gdpo_reward_keys") or ()) for config in configs]
    return Rollout.synthetic((each for each in bounds if isinstance(each, int | float)), max(2, *rewards))


class Training:
    """What verl does with a configuration, made by `of_probe`, on a rollout."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.algorithm: Any = OmegaConf.create(OmegaConf.to_container(config.algorithm, resolve=True))
        self.actor: Any = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self._is_ours = runs_v1(config) and setting(config, keys.MODE) in OUR_MODES
        # Unchecked, for a wrong option elsewhere in the section is another check's.
        anchor = setting(config, f"{SECTION}.gvpo_anchor", "old")
        self._anchor = Options.model_construct(gvpo_anchor=anchor).anchor_field
        self._rewards = setting(config, "algorithm.gdpo_reward_keys")

    def scored(self, rollout: Rollout) -> tuple[Rollout, DataProto]:
        """Return the rollout with old log-probs, mask and weights of the training, and verl's scored batch.

        Both are as KL in the reward and rollout correction leave them.
        """
        correction = self.algorithm.get("rollout_correction")
        if setting(self.config, keys.BYPASS):
            rollout, correction = replace(rollout, old_log_prob=rollout.rollout_log_prob), None
        columns = {
            "response_mask": rollout.response_mask,
            "token_level_scores": rollout.scores,
            "token_level_rewards": rollout.scores,
            "old_log_probs": rollout.old_log_prob,
            "ref_log_prob": rollout.ref_log_prob,
            "rollout_log_probs": rollout.rollout_log_prob,
            "values": rollout.values,
            # What some of verl's own estimators ask for beside.
            "reward_baselines": rollout.rewards[:, 0].mean().expand(len(rollout.lengths)),
            "sum_pi_squared": torch.full_like(rollout.log_prob, 0.3),
        }
        others = dict(zip(self._rewards or (), rollout.rewards.T.tolist(), strict=False))
        others["uid"] = [f"prompt{number}" for number in rollout.prompt.tolist()]
        data = DataProto.from_dict(columns, others)
        if self.algorithm.use_kl_in_reward:
            controller = get_kl_controller(self.algorithm.kl_ctrl)
            data, _ = apply_kl_penalty(data, kl_ctrl=controller, kl_penalty=self.algorithm.kl_penalty)
        if correction is not None and setting(self.config, f"{ROLLOUT}.calculate_log_probs"):
            data, _ = compute_rollout_correction_and_add_to_batch(data, correction)
        mask, weights = data.batch["response_mask"].long(), data.batch.get("rollout_is_weights")
        return replace(rollout, response_mask=mask, rollout_is_weights=weights), data

    def rows(self, rollout: Rollout) -> Rollout:
        """Return a rollout with what the loss gets: beside the above, advantages."""
        rows, data = self.scored(rollout)
        prompts = data.non_tensor_batch["uid"]
        told: dict[str, Any] = {
            "row_keys": [f"{prompt}_{row}_0" for row, prompt in enumerate(prompts)],
            "steps": rows.steps,
            "several_rewards": rows.rewards[:, : len(self._rewards or (1, 2))],
        }
        with wire.passing(**(told if self._is_ours else {})):
            given = {name: self.algorithm[name] for name in ("adv_estimator", "gamma", "lam")}
            given["norm_adv_by_std_in_grpo"] = self.algorithm.get("norm_adv_by_std_in_grpo", True)
            data = compute_advantage(data, **given, num_repeat=ROWS_PER_PROMPT, config=self.algorithm)
        rows = replace(rows, advantages=data.batch["advantages"])
        has_groups = self._is_ours and catalogue.has_groups(self.config)
        if self._anchor == wire.Field.OLD_LOG_PROBS or not has_groups:
            return replace(rows, of_anchor=None)
        _, fields = rows.micro_batch([*range(len(rows.lengths))], dp_size=1)
        fields = {self._anchor: rows.of_anchor} | dict(fields.items())
        targets = anchored_targets(fields, prompts, self._anchor, self.actor.policy_loss)
        advantages = torch.zeros_like(rows.log_prob).masked_scatter(rows.given, targets)
        if self._anchor == wire.Field.REF_LOG_PROB:
            rows = replace(rows, of_anchor=sequence_sums(rows.ref_log_prob, rows.response_mask))
        return replace(rows, advantages=advantages)

    def weights(self, rows: Rollout, ranks: list[list[list[int]]] | None = None) -> Tensor:
        """−∂L/∂log π of each token of the responses, and then −∂L/∂ of each entropy: (2 N,)."""
        _, gradient = rows.value_and_gradient(self.actor, ranks, is_ours=self._is_ours)
        return -gradient[:, rows.given].flatten()
