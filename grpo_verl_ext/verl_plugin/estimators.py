"""Advantage estimators with verl's signature, made from records of the catalogue.

verl calls one in the driver with the whole rollout batch: ``token_level_rewards`` and ``response_mask``
(B, T), ``index`` the prompt id of each row, ``config`` verl's ``algorithm`` section. All return
``(advantages, returns)``, (B, T) each and equal, as verl's own outcome estimators do.

As with verl's ``grpo``, every response counts in mean and standard deviation, even with no token in
``response_mask`` (all rejected, or none written), except where a record's weights must sum to zero
(`Estimator.sums_to_zero`). Of a session with several outputs the last counts, and all get its advantage
(`batch.sessions`). Padding rows never count.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grpo_verl_ext.algorithms import advantages as adv
from grpo_verl_ext.algorithms import gvpo, ragged
from grpo_verl_ext.algorithms.groups import dense_group_ids
from grpo_verl_ext.algorithms.process import process_advantages
from grpo_verl_ext.algorithms.validation import check_rows, check_same_shape
from grpo_verl_ext.catalogue import Estimator, evaluation
from grpo_verl_ext.catalogue.gvpo import ANCHORS, alpha_of
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.verl_plugin.batch.sessions import RowRoles, row_roles
from grpo_verl_ext.verl_plugin.config import TRAINER_MODES, Options
from grpo_verl_ext.verl_plugin.features import all_features
from grpo_verl_ext.verl_plugin.wire import OUR_TRAINER, SEVERAL_REWARDS, STEPS, Field

VerlsCall = Callable[..., tuple[Tensor, Tensor]]


class _Batch(NamedTuple):
    """What verl passes to an estimator, and what is known of the rows."""

    token_level_rewards: Tensor
    response_mask: Tensor
    learnt: Tensor
    """The tokens that are learnt from, (B, T) bool."""
    group: Tensor
    rows: RowRoles
    options: Options
    config: Mapping[str, Any]


def estimator_function(estimator: Estimator) -> VerlsCall:
    """Return an estimator with verl's signature: (B, T) rewards and mask, prompt ids → advantages, returns.

    With another ``gvpo_anchor`` than ``old`` the trainer, which has its log-probs, subtracts β (ℓ − mean ℓ).
    """
    compute = _process if estimator.needs_steps else _several if estimator.several_rewards else _outcome

    @torch.no_grad()
    def function(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: npt.ArrayLike | None = None,
        config: Mapping[str, Any] | None = None,
        **_: object,
    ) -> tuple[Tensor, Tensor]:
        options = Options.for_estimator(config, estimator.name)
        _check_our_trainer(options)
        group = _group_ids(estimator.name, index, token_level_rewards)
        check_rows(response_mask, group)
        rows = row_roles(estimator, np.asarray(index).tolist(), token_level_rewards.device)
        _check_kl_of_all_outputs(rows, config or {})
        learnt = adv.learnt_from(response_mask, options.budget_of_truncated)
        batch = _Batch(token_level_rewards, response_mask, learnt, group, rows, options, config or {})
        advantages = compute(estimator, batch).to(token_level_rewards.dtype)
        return advantages, advantages

    function.__doc__ = estimator.doc
    return function


def _process(estimator: Estimator, batch: _Batch) -> Tensor:
    steps = STEPS.get()
    if steps is None:
        raise ValueError(
            f"algorithm.adv_estimator={estimator.name} has no step rewards to learn from; valid are a "
            f"trainer mode and an agent loop of this package. Type: +algo={estimator.name}"
        )
    baseline = evaluation.BASELINES[str(batch.options.scale_rewards)]
    return process_advantages(
        steps.rewards, steps.row, steps.end, batch.learnt, batch.group, baseline=baseline
    )


def _outcome(estimator: Estimator, batch: _Batch) -> Tensor:
    rewards, mask, learnt, group, rows, options, _ = batch
    check_same_shape(token_level_rewards=rewards, response_mask=mask)
    # One pass over rewards and one over the mask (int64 in verl); all other (B, T) but the result are flags.
    totals, scale = adv.response_rewards(rewards), options.scale_rewards
    of_response = evaluation.response_advantages(
        estimator, totals, group, rows.member, learnt, scale_rewards=scale
    )
    of_session = of_response[rows.last].to(rewards.dtype)
    return evaluation.token_advantages(estimator, of_session, mask, learnt, group)


def _several(estimator: Estimator, batch: _Batch) -> Tensor:
    rewards, rows = SEVERAL_REWARDS.get(), batch.rows
    if rewards is None:
        raise ValueError(
            f"algorithm.adv_estimator={estimator.name} has one reward to learn from, their sum; valid is a "
            f"trainer mode of this package. Type: +algo=gdpo"
        )
    check_rows(rewards, batch.group)
    weights = batch.config.get("gdpo_reward_weights") or None
    of_response = evaluation.response_advantages(
        estimator, rewards, batch.group, rows.member, batch.learnt, weights=weights
    )
    return adv.on_tokens(of_response[rows.last].to(batch.token_level_rewards.dtype), batch.learnt)


def _group_ids(name: str, index: npt.ArrayLike | None, token_level_rewards: Tensor) -> Tensor:
    if index is None:
        raise ValueError(
            f"{name}: index is None, so the groups are unknown; valid is one prompt id per row, which verl "
            f"takes from 'uid'. Pass index=<(B,) ids>"
        )
    group = dense_group_ids(index, token_level_rewards.device)
    if group.shape != token_level_rewards.shape[:1]:
        raise ValueError(
            f"{name}: index has {group.numel()} prompt ids for {token_level_rewards.shape[:1].numel()} rows; "
            f"valid is one id per row. Pass index=<(B,) ids>"
        )
    return group


def _check_kl_of_all_outputs(rows: RowRoles, config: Mapping[str, Any]) -> None:
    """Refuse a KL in the reward for sessions of several outputs, of which only the last one's would count."""
    own = torch.arange(rows.last.numel(), device=rows.last.device)
    weighs = config.get("use_kl_in_reward") and (config.get("kl_ctrl") or {}).get("kl_coef", 1)
    if weighs and not torch.equal(rows.last, own):
        raise SettingError(
            "algorithm.use_kl_in_reward",
            True,
            why="the agent loop answers a session by several outputs, of which the last reward counts, so "
            "that the KL of the others would be lost",
            valid="false",
            fix=Line("algorithm.use_kl_in_reward=false", "actor_rollout_ref.actor.use_kl_loss=true"),
        )


def _check_our_trainer(options: Options) -> None:
    """Refuse what a trainer mode of this package does, under verl's own: anchors but ``old``, features."""
    if OUR_TRAINER.get():
        return
    if options.gvpo_anchor != "old":
        raise _without_effect("gvpo_anchor", options.gvpo_anchor, "brings its log-probs to the targets")
    for feature in all_features():
        for option, task in feature.done_by_trainer.items():
            value: Any = options
            for name in option.split("."):
                value = getattr(value, name, None)
            if value is not None:
                raise _without_effect(option, value, task)


def _without_effect(option: str, value: object, task: str) -> SettingError:
    key = f"algorithm.grpo_ext.{option}"
    return SettingError(
        key,
        value,
        why=f"nothing in this training {task}",
        valid=f"a trainer mode of this package ({', '.join(TRAINER_MODES)})",
        fix="python3 -m verl.trainer.main_ppo … trainer.use_v1=true trainer.v1.trainer_mode=grpo_ext_sync",
    )


def anchor_field(anchor: str) -> str:
    """Return the field of verl's batch with the log-probs of GVPO's anchor, a value of ``gvpo_anchor``."""
    of_features = {name: field for each in all_features() for name, field in each.anchors.items()}
    return (ANCHORS | of_features)[anchor]


def anchored_targets(rows: Any, prompts: Sequence[str], anchor: str, policy_loss: Any) -> Tensor:
    """Return GVPO's targets for an anchor, made of the estimator's R − R̄, for tokens laid end to end: (N,).

    Args:
        rows: fields of verl's batch, ragged.
        prompts: the prompt id of each row.
        anchor: the field with its log-probs, ragged, or (rows,) sums over the tokens of each.
        policy_loss: verl's section ``actor.policy_loss``.
    """
    mask, offsets = rows["response_mask"].values(), rows["response_mask"].offsets()
    lengths = ragged.row_lengths(mask, offsets)
    old_log_prob = rows[Field.OLD_LOG_PROBS].values()
    if rows[anchor].is_nested:
        log_ratio = ragged.row_log_ratio(old_log_prob, rows[anchor].values(), mask, offsets)
    else:
        log_ratio = ragged.row_sums(old_log_prob, mask, offsets) - rows[anchor]
    weighted = gvpo.length_weight(lengths, alpha_of(policy_loss)) * log_ratio
    rewards = ragged.row_values(rows["advantages"].values(), mask, offsets).double()
    group = dense_group_ids(prompts)
    targets = gvpo.anchored(rewards, weighted, group, lengths > 0, policy_loss.gvpo_beta)
    targets = targets.to(torch.promote_types(old_log_prob.dtype, torch.float32))
    return ragged.on_row_tokens(targets, mask, offsets)
