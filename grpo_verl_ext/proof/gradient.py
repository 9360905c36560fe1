"""What a configuration trains: −∂L/∂log π of each token, through verl's own functions in verl's order.

KL in the reward, rollout correction, advantages, the actor's dataclass, ``ppo_loss``, backward: as
``PPOTrainer._compute_advantage`` and the workers call them, on a `synthetic_rollout`. No Ray, model or GPU is
needed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo.core_algos import get_kl_controller
from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils.config import omega_conf_to_dataclass

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms.aggregation import sequence_sums
from grpo_verl_ext.catalogue.gvpo import alpha_of
from grpo_verl_ext.catalogue.record import CLIPS
from grpo_verl_ext.proof.batch import MAX_RESPONSE_LENGTH, ROWS_PER_PROMPT, Rollout, cut, synthetic_rollout
from grpo_verl_ext.utils import keys
from grpo_verl_ext.utils.keys import ACTOR, POLICY_LOSS, ROLLOUT, SCALE_FACTOR, SECTION, setting
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES
from grpo_verl_ext.verl_plugin.estimators import anchor_field, anchored_targets

_OTHER_DRIVERS = {keys.FULLY_ASYNC, keys.ONE_STEP_OFF}
_BUDGET = "data.max_response_length"
_IN_TOKENS = (SCALE_FACTOR, f"{SECTION}.max_response_length", f"{POLICY_LOSS}.max_response_length")
"""Keys that are, or may be, the response budget."""
_BOUNDS = (*(f"{ACTOR}.{name}" for name in CLIPS), f"{POLICY_LOSS}.off_policy_mask_threshold")


def changed(config: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """Return a copy with other values of some keys, and without those whose value is ``...``."""
    copied = copy.deepcopy(config)
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
    for key in _IN_TOKENS:
        if isinstance(value := setting(config, key), int | float):
            scaled = value / budget * MAX_RESPONSE_LENGTH
            values[key] = scaled if key == SCALE_FACTOR else max(1, round(scaled))
    return changed(config, values)


def rollout_for(*configs: DictConfig) -> Rollout:
    """Return a rollout with rows beside every bound of these configurations."""
    bounds = [setting(config, key) for config in configs for key in _BOUNDS]
    rewards = [len(setting(config, "algorithm.gdpo_reward_keys") or ()) for config in configs]
    return synthetic_rollout((each for each in bounds if isinstance(each, int | float)), max(2, *rewards))


class Prepared:
    """A configuration, made by `of_probe`, as verl's trainer and workers hold it; read once.

    Attributes:
        config: the whole.
        algorithm: verl's section, resolved.
        actor: verl's dataclass of the actor.
        is_ours: whether a trainer mode of this package trains.
    """

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.algorithm: Any = OmegaConf.create(OmegaConf.to_container(config.algorithm, resolve=True))
        self.actor: Any = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        is_v1 = setting(config, "trainer.use_v1", True) and not _OTHER_DRIVERS & {*config}
        self.is_ours = bool(is_v1) and setting(config, keys.MODE) in TRAINER_MODES


class Training:
    """What verl would do with a configuration on a rollout, whose ``log_prob`` is the policy to update.

    Attributes:
        rollout: with the old log-probs of the training.
    """

    def __init__(self, prepared: Prepared, rollout: Rollout) -> None:
        self._algorithm, self._config = prepared.algorithm, prepared.config
        self.actor, self._is_ours = prepared.actor, prepared.is_ours
        is_bypassed = setting(prepared.config, keys.BYPASS)
        self.rollout = replace(rollout, old_log_prob=rollout.rollout_log_prob) if is_bypassed else rollout
        self._rewards = setting(prepared.config, "algorithm.gdpo_reward_keys")
        self._anchor = anchor_field(setting(prepared.config, f"{SECTION}.gvpo_anchor", "old"))

    @cached_property
    def scored(self) -> DataProto:
        """The padded batch with rewards, after KL and rollout correction, as verl's trainer has it."""
        rows, algorithm = self.rollout, self._algorithm
        columns = {
            "response_mask": rows.response_mask,
            "token_level_scores": rows.scores,
            "token_level_rewards": rows.scores,
            "old_log_probs": rows.old_log_prob,
            "ref_log_prob": rows.ref_log_prob,
            "rollout_log_probs": rows.rollout_log_prob,
            "values": rows.values,
            # What some of verl's own estimators ask for beside.
            "reward_baselines": rows.rewards[:, 0].mean().expand(len(rows.lengths)),
            "sum_pi_squared": torch.full_like(rows.log_prob, 0.3),
        }
        others = dict(zip(self._rewards or (), rows.rewards.T.tolist(), strict=False)) | {"uid": rows.prompts}
        data = DataProto(
            batch=TensorDict(columns, batch_size=len(rows.lengths)),
            non_tensor_batch={name: np.array(values, dtype=object) for name, values in others.items()},
        )
        if algorithm.use_kl_in_reward:
            controller = get_kl_controller(algorithm.kl_ctrl)
            data, _ = apply_kl_penalty(data, kl_ctrl=controller, kl_penalty=algorithm.kl_penalty)
        correction = algorithm.get("rollout_correction")
        is_recorded = setting(self._config, f"{ROLLOUT}.calculate_log_probs")
        if correction is not None and is_recorded and not correction.get("bypass_mode", False):
            data, _ = compute_rollout_correction_and_add_to_batch(data, correction)
        return data

    @cached_property
    def rows(self) -> Rollout:
        """The rollout with what the loss gets: advantages, the mask that is left, and weights."""
        algorithm, rollout, scored = self._algorithm, self.rollout, self.scored
        told: dict[Any, Any] = {
            wire.OUR_TRAINER: True,
            wire.ROW_KEYS: [f"{prompt}_{row}_0" for row, prompt in enumerate(rollout.prompts)],
            wire.STEPS: rollout.steps,
            wire.SEVERAL_REWARDS: rollout.rewards[:, : len(self._rewards or (1, 2))],
        }
        with ExitStack() as stack:
            for name, value in told.items() if self._is_ours else ():
                stack.enter_context(name.set(value))
            given = {name: algorithm[name] for name in ("adv_estimator", "gamma", "lam")}
            given["norm_adv_by_std_in_grpo"] = algorithm.get("norm_adv_by_std_in_grpo", True)
            data = compute_advantage(scored, **given, num_repeat=ROWS_PER_PROMPT, config=algorithm)
        rows = replace(
            rollout,
            advantages=data.batch["advantages"],
            response_mask=scored.batch["response_mask"].long(),
            rollout_is_weights=scored.batch.get("rollout_is_weights"),
        )
        has_groups = self._is_ours and catalogue.has_groups(self._config)
        if self._anchor == wire.Field.OLD_LOG_PROBS or not has_groups:
            return rows
        _, fields = rows.micro_batch([*range(len(rows.lengths))], dp_size=1)
        fields = {self._anchor: rows.of_anchor} | dict(fields.items())
        targets = anchored_targets(fields, rows.prompts, self._anchor, self.actor.policy_loss)
        return replace(rows, advantages=torch.zeros_like(rows.log_prob).masked_scatter(rows.given, targets))

    def value_and_gradient(
        self, ranks: list[list[list[int]]] | None = None, old_shift: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return L, and its gradient by log-probs and entropies: (2, B, T).

        Args:
            ranks: the micro-batches of each rank; None: all rows in one.
            old_shift: added to the old log-probs that the loss gets, and to nothing before it.
        """
        rows = replace(self.rows, old_log_prob=self.rows.old_log_prob + old_shift)
        groups = None
        if self._is_ours:
            of_ref = sequence_sums(rows.ref_log_prob, rows.response_mask)
            known = {wire.Field.OLD_LOG_PROBS: None, wire.Field.REF_LOG_PROB: of_ref}
            groups = rows.groups(alpha_of(self.actor.policy_loss), known.get(self._anchor, rows.of_anchor))
        return rows.value_and_gradient(self.actor, ranks or cut(rows.lengths, "whole", 1), groups)

    def weights(self, ranks: list[list[list[int]]] | None = None, old_shift: float = 0.0) -> Tensor:
        """−∂L/∂log π of each token of the responses, and then −∂L/∂ of each entropy: (2 N,)."""
        _, gradient = self.value_and_gradient(ranks, old_shift)
        return -gradient[:, self.rollout.given].flatten()
