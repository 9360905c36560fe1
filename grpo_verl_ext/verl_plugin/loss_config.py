"""Options of the losses, a dataclass that verl builds from ``actor.policy_loss``, and their checks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl.workers.config import PolicyLossConfig

from grpo_verl_ext.algorithms import gvpo_terms
from grpo_verl_ext.verl_plugin.config import ACTOR, ALL_TERMS, BUDGET
from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.rules import ON_OR_OFF, POSITIVE, is_number, is_positive, key, one_of

TERMS = one_of(ALL_TERMS, *gvpo_terms.LOSSES)

THRESHOLD = replace(POSITIVE, example="0.5", nullable=True)

POLICY_LOSS = f"{ACTOR}.policy_loss"

MASK = f"{POLICY_LOSS}.off_policy_mask_threshold"

CONSTANT_LENGTH = "seq-mean-token-sum-norm"
"""The ``loss_agg_mode`` that divides by ``loss_scale_factor``."""


@dataclass
class LossConfig(PolicyLossConfig):  # type: ignore[misc]  # verl ships no types
    """verl's loss options and ours; ``policy_loss._target_`` selects it, as verl's class refuses our keys."""

    max_response_length: int | None = key(
        None,
        BUDGET,
        "the response budget in tokens, for the metric `actor/frac_truncated`",
    )
    off_policy_mask_threshold: float | None = key(
        None,
        THRESHOLD,
        "responses with A < 0 whose mean of log π_old/π_θ exceeds it, in nats per token, get no gradient "
        "(arXiv 2512.02556); not with `gvpo` and losses of verl",
    )
    gvpo_beta: float | None = key(
        None,
        POSITIVE,
        "β of GVPO, reward units per nat; larger stays nearer to the anchor",
    )
    gvpo_terms: str = key(ALL_TERMS, TERMS, "GVPO, or its paper's ablation")
    gvpo_terms_ablation: bool = key(False, ON_OR_OFF, "needed for the ablation")

    def __post_init__(self) -> None:
        """Refuse a budget that is not a number of tokens."""
        BUDGET.check(f"{POLICY_LOSS}.max_response_length", self.max_response_length)


def check_loss(loss_mode: str, required: str, actor: Mapping[str, Any]) -> None:
    """Check verl's section ``actor_rollout_ref.actor`` against one of our losses, before any rollout.

    Args:
        loss_mode: name of the loss.
        required: the ``loss_agg_mode`` that it needs.
        actor: the section.

    Raises:
        SettingError: ``loss_agg_mode``, ``loss_scale_factor``, a clip range, β or the off-policy mask
            contradicts the loss, or GVPO lacks a term without ``gvpo_terms_ablation``.
    """
    _check_aggregation(loss_mode, required, actor)
    if loss_mode == "gvpo":
        _check_beta(actor["policy_loss"].get("gvpo_beta"))
        _check_terms(actor["policy_loss"])
        check_no_mask(loss_mode, actor)
        return
    THRESHOLD.check(MASK, _mask_threshold(actor))
    _check_clip_range(actor)
    if loss_mode == "gmpo":
        _check_no_dual_clip(loss_mode, actor.get("clip_ratio_c"))


def check_no_mask(loss_mode: str, actor: Mapping[str, Any]) -> None:
    """Refuse ``off_policy_mask_threshold`` with a loss that does not read it.

    Raises:
        SettingError: it is set.
    """
    if _mask_threshold(actor) is not None:
        raise SettingError(
            MASK,
            _mask_threshold(actor),
            why=f"policy_loss.loss_mode={loss_mode} does not read it",
            valid="null",
            fix=f"{MASK}=null",
        )


def _mask_threshold(actor: Mapping[str, Any]) -> object:
    return (actor.get("policy_loss") or {}).get("off_policy_mask_threshold")


def _check_aggregation(loss_mode: str, required: str, actor: Mapping[str, Any]) -> None:
    if actor["loss_agg_mode"] != required:
        raise SettingError(
            f"{ACTOR}.loss_agg_mode",
            actor["loss_agg_mode"],
            why=f"with policy_loss.loss_mode={loss_mode} verl is to aggregate KL and entropy as the loss "
            "does",
            valid=required,
            fix=f"{ACTOR}.loss_agg_mode={required}",
        )
    if required == CONSTANT_LENGTH and not is_positive(actor["loss_scale_factor"]):
        raise SettingError(
            f"{ACTOR}.loss_scale_factor",
            actor["loss_scale_factor"],
            why=f"policy_loss.loss_mode={loss_mode} divides by a constant length (with null verl would take "
            "the longest response of each micro-batch)",
            valid="a number > 0, the response budget",
            fix=f"'{ACTOR}.loss_scale_factor=${{data.max_response_length}}'",
        )


def _check_beta(beta: object) -> None:
    key = f"{POLICY_LOSS}.gvpo_beta"
    without_preset = f"{POLICY_LOSS}._target_=grpo_verl_ext.verl_plugin.loss_config.LossConfig +{key}=0.1"
    missing = f"+algo=gvpo, or without the preset: {without_preset}"
    fix = missing if beta is None else f"{key}=0.1"
    POSITIVE.check(key, beta, why="policy_loss.loss_mode=gvpo needs its β", fix=fix)


def _check_terms(policy_loss: Mapping[str, Any]) -> None:
    terms, acknowledged = policy_loss.get("gvpo_terms", ALL_TERMS), f"{POLICY_LOSS}.gvpo_terms_ablation"
    TERMS.check(f"{POLICY_LOSS}.gvpo_terms", terms)
    ON_OR_OFF.check(acknowledged, policy_loss.get("gvpo_terms_ablation", False))
    if terms != ALL_TERMS and not policy_loss.get("gvpo_terms_ablation", False):
        raise SettingError(
            f"{POLICY_LOSS}.gvpo_terms",
            terms,
            why="without one of its terms the loss has another minimiser than π′ e^{R/β}, or none; it is the "
            "paper's ablation, not an algorithm",
            valid=ALL_TERMS,
            fix=f"{POLICY_LOSS}.gvpo_terms={ALL_TERMS}, or in a grid that measures it: +{acknowledged}=true",
        )


def _check_clip_range(actor: Mapping[str, Any]) -> None:
    for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"):
        clip_ratio = actor.get(name, 0.2)
        falls_back = clip_ratio is None and name != "clip_ratio"
        if not falls_back and not (is_number(clip_ratio) and clip_ratio >= 0):
            full = f"{ACTOR}.{name}"
            raise SettingError(full, clip_ratio, valid="a finite number ≥ 0", fix=f"{full}=0.2")
    clip_ratio_c = actor.get("clip_ratio_c")
    if clip_ratio_c is not None and not (is_number(clip_ratio_c) and clip_ratio_c > 1):
        full = f"{ACTOR}.clip_ratio_c"
        raise SettingError(
            full, clip_ratio_c, valid="a number > 1, or null for no dual clip", fix=f"{full}=null"
        )


def _check_no_dual_clip(loss_mode: str, clip_ratio_c: object) -> None:
    if clip_ratio_c is not None:
        full = f"{ACTOR}.clip_ratio_c"
        raise SettingError(
            full,
            clip_ratio_c,
            why=f"policy_loss.loss_mode={loss_mode} has no dual clip",
            valid="null",
            fix=f"{full}=null",
        )
