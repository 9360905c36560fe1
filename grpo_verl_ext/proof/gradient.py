"""What a configuration trains: −∂L/∂log π of each token, through verl's own functions in verl's order.

KL in the reward, rollout correction, advantages, the actor's dataclass, ``ppo_loss``, backward: as
``PPOTrainer._compute_advantage`` and the workers call them, on a `synthetic_rollout`. No Ray, model or GPU is
needed.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl import DataProto
from verl.trainer.ppo.core_algos import get_kl_controller
from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.gvpo import alpha_of
from grpo_verl_ext.proof.batch import (
    MAX_RESPONSE_LENGTH,
    ROWS_PER_PROMPT,
    RaggedBatch,
    RowNumbers,
    cut,
    micro_batch,
)
from grpo_verl_ext.proof.rollout import F64, Rollout, synthetic_rollout
from grpo_verl_ext.utils.keys import (
    ACTOR,
    BYPASS,
    FULLY_ASYNC,
    MODE,
    ONE_STEP_OFF,
    POLICY_LOSS,
    ROLLOUT,
    SCALE_FACTOR,
    SECTION,
    setting,
)
from grpo_verl_ext.verl_plugin import wire
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES
from grpo_verl_ext.verl_plugin.gvpo.targets import ANCHORS, anchored_targets

_OTHER_DRIVERS = {FULLY_ASYNC, ONE_STEP_OFF}
_BUDGET = "data.max_response_length"
_IN_TOKENS = (SCALE_FACTOR, f"{SECTION}.max_response_length", f"{POLICY_LOSS}.max_response_length")
"""Keys that are, or may be, the response budget."""
_BOUNDS = (
    *(f"{ACTOR}.{name}" for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")),
    f"{POLICY_LOSS}.off_policy_mask_threshold",
)


def of_probe(config: DictConfig) -> DictConfig:
    """Return a copy of a configuration with the synthetic rollout's group size and response budget.

    Numbers of tokens keep their ratio to the budget.
    """
    own = copy.deepcopy(config)
    n, budget = setting(config, f"{ROLLOUT}.n"), setting(config, _BUDGET)
    with open_dict(own):
        for key in _IN_TOKENS:
            value, (section, _, name) = setting(config, key), key.rpartition(".")
            if isinstance(value, int | float) and not OmegaConf.is_interpolation(
                OmegaConf.select(own, section), name
            ):
                scaled = value / budget * MAX_RESPONSE_LENGTH
                OmegaConf.update(own, key, scaled if key == SCALE_FACTOR else max(1, round(scaled)))
        if setting(config, f"{ACTOR}.rollout_n", n) == n:
            OmegaConf.update(own, f"{ACTOR}.rollout_n", ROWS_PER_PROMPT)
        OmegaConf.update(own, f"{ACTOR}.ppo_micro_batch_size", None)
        OmegaConf.update(own, f"{ACTOR}.ppo_micro_batch_size_per_gpu", 1)
        OmegaConf.update(own, _BUDGET, MAX_RESPONSE_LENGTH)
        OmegaConf.update(own, f"{ROLLOUT}.n", ROWS_PER_PROMPT)
    return own


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
    """

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.algorithm: Any = OmegaConf.create(OmegaConf.to_container(config.algorithm, resolve=True))
        self.actor: Any = omega_conf_to_dataclass(config.actor_rollout_ref.actor)

    @cached_property
    def is_ours(self) -> bool:
        """Whether a trainer mode of this package trains."""
        is_v1 = setting(self.config, "trainer.use_v1", True) and not _OTHER_DRIVERS & {*self.config}
        return bool(is_v1) and setting(self.config, MODE) in TRAINER_MODES


class Training:
    """What verl would do with a configuration on a rollout, whose ``log_prob`` is the policy to update."""

    def __init__(self, prepared: Prepared, rollout: Rollout) -> None:
        self._algorithm, self._config = prepared.algorithm, prepared.config
        self.actor, self._is_ours = prepared.actor, prepared.is_ours
        is_bypassed = bool(setting(self._config, BYPASS))
        self._rollout = rollout.with_old(rollout.rollout_log_prob) if is_bypassed else rollout

    @property
    def rows(self) -> RaggedBatch:
        """The rollout's rows, with the old log-probs of the training."""
        return self._rollout.rows

    @cached_property
    def scored(self) -> DataProto:
        """The padded batch with rewards, after KL and rollout correction, as verl's trainer has it."""
        rows, algorithm = self._rollout.rows, self._algorithm
        mask = pad_sequence(rows.response_mask, batch_first=True)
        scores = torch.zeros(mask.shape, dtype=F64)
        scores[torch.arange(len(mask)), [len(each) - 1 for each in rows.response_mask]] = (
            self._rollout.rewards[:, 0]
        )
        columns = {
            "response_mask": mask,
            "token_level_scores": scores,
            "token_level_rewards": scores,
            "old_log_probs": pad_sequence(rows.old_log_prob, batch_first=True),
            "ref_log_prob": pad_sequence(rows.ref_log_prob, batch_first=True),
            "rollout_log_probs": pad_sequence(self._rollout.rollout_log_prob, batch_first=True),
            "values": pad_sequence(self._rollout.values, batch_first=True),
            # What some of verl's own estimators ask for beside.
            "reward_baselines": self._rollout.rewards[:, 0].mean().expand(len(mask)),
            "sum_pi_squared": torch.full(mask.shape, 0.3, dtype=F64),
        }
        names = setting(self._config, "algorithm.gdpo_reward_keys") or ()
        others = {"uid": self._rollout.prompts} | dict(
            zip(names, self._rollout.rewards.T.tolist(), strict=False)
        )
        data = DataProto(
            batch=TensorDict(columns, batch_size=len(mask)),
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
    def advantages(self) -> Tensor:
        """What the estimator makes of the rewards, as the loss gets it: (B, T)."""
        algorithm = self._algorithm
        with ExitStack() as stack:
            if self._is_ours:
                stack.enter_context(wire.OUR_TRAINER.set(True))
                stack.enter_context(wire.ROW_KEYS.set(self._rollout.keys))
                stack.enter_context(wire.STEPS.set(self._rollout.steps))
                names = setting(self._config, "algorithm.gdpo_reward_keys") or (1, 2)
                rewards = self._rollout.rewards[:, : len(names)]
                stack.enter_context(wire.SEVERAL_REWARDS.set(rewards))
            data = compute_advantage(
                self.scored,
                adv_estimator=algorithm.adv_estimator,
                gamma=algorithm.gamma,
                lam=algorithm.lam,
                num_repeat=ROWS_PER_PROMPT,
                norm_adv_by_std_in_grpo=algorithm.get("norm_adv_by_std_in_grpo", True),
                config=algorithm,
            )
        advantages: Tensor = data.batch["advantages"]
        anchor = self._anchor
        if anchor == wire.Field.OLD_LOG_PROBS or not (self._is_ours and catalogue.has_groups(self._config)):
            return advantages
        rows = self._rollout.rows
        lengths = [len(mask) for mask in rows.response_mask]
        columns = {
            "response_mask": self._masks(),
            wire.Field.OLD_LOG_PROBS: rows.old_log_prob,
            wire.Field.REF_LOG_PROB: rows.ref_log_prob,
            "advantages": [row[:length] for row, length in zip(advantages, lengths, strict=True)],
        }
        jagged: dict[str, Tensor] = {
            name: torch.nested.as_nested_tensor(list(values), layout=torch.jagged)
            for name, values in columns.items()
        }
        given = {**jagged, wire.Field.TEACHER_LOG_PROB: self._rollout.teacher}
        targets = anchored_targets(given, self._rollout.prompts, anchor, self.actor.policy_loss)
        return pad_sequence([*torch.split(targets, lengths)], batch_first=True)

    @property
    def _anchor(self) -> str:
        return ANCHORS[str((self._algorithm.get("grpo_ext") or {}).get("gvpo_anchor", "old"))]

    def _masks(self) -> list[Tensor]:
        """Return what the rollout correction leaves of the mask: (T_i,) each."""
        mask, rows = self.scored.batch["response_mask"], self._rollout.rows
        return [row[: len(own)].long() for row, own in zip(mask, rows.response_mask, strict=True)]

    def weights(self, ranks: list[list[RowNumbers]] | None = None, old_shift: float = 0.0) -> Tensor:
        """−∂L/∂log π of each token of the responses, and then −∂L/∂ of each entropy: (2 N,).

        Args:
            ranks: the micro-batches of each rank; None: all rows in one.
            old_shift: added to the old log-probs that the loss gets, and to nothing before it.
        """
        rows = self._rollout.rows
        lengths = [len(mask) for mask in rows.response_mask]
        advantages = [row[:length] for row, length in zip(self.advantages, lengths, strict=True)]
        old = [row + old_shift for row in rows.old_log_prob]
        batch = replace(rows, advantages=advantages, response_mask=self._masks(), old_log_prob=old)
        batch = batch.with_fresh_gradients()
        correction = self.scored.batch.get("rollout_is_weights")
        ranks = ranks or cut(batch.lengths, "whole", 1)
        anchor = {
            wire.Field.REF_LOG_PROB: lambda: batch.sums(batch.ref_log_prob),
            wire.Field.TEACHER_LOG_PROB: lambda: self._rollout.teacher,
        }.get(self._anchor, lambda: None)()
        for numbers in (numbers for rank in ranks for numbers in rank):
            output, data = micro_batch(batch, numbers, len(ranks), with_entropy=self.actor.entropy_coeff != 0)
            if correction is not None:
                parts = [correction[number, : lengths[number]] for number in numbers]
                data["rollout_is_weights"] = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
            with ExitStack() as stack:
                if self._is_ours:
                    groups = batch.groups(numbers, alpha_of(self.actor.policy_loss), anchor)
                    stack.enter_context(wire.GROUPS.set(groups))
                    stack.enter_context(wire.STATISTIC.set(batch.statistic(self.actor, numbers)))
                loss, _ = ppo_loss(self.actor, output, data)
            if loss.requires_grad:
                (loss / len(ranks)).backward()
        return -torch.cat([*batch.written_gradients(batch.log_prob), *batch.written_gradients(batch.entropy)])
