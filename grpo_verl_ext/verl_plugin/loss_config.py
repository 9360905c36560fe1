"""Options of the losses, a dataclass that verl builds from ``actor.policy_loss``, and their checks."""

from collections.abc import Mapping
from dataclasses import field, make_dataclass
from typing import Any

from verl.workers.config import PolicyLossConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import Loss, TokenLoss, mode_of
from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH, LOSS_AGG_MODES
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import AGGREGATION, POLICY_LOSS, SCALE_FACTOR
from grpo_verl_ext.utils.options import Count, PositiveFloat, Section, is_positive, option, read_section

_MASK = f"{POLICY_LOSS}.off_policy_mask_threshold"


class _CommonOptions(Section):
    """Keys of ``actor.policy_loss`` for every loss of this package."""

    max_response_length: Count | None = option(
        None,
        "the response budget in tokens, for the metric `actor/frac_truncated`",
        "an integer ≥ 1",
        "${data.max_response_length}",
    )
    off_policy_mask_threshold: PositiveFloat | None = option(
        None,
        "responses with A < 0 whose mean of log π_old/π_θ exceeds it, in nats per token, get no gradient "
        "(arXiv 2512.02556); not with `gvpo`, `kimi` and losses of verl",
        "a finite number > 0",
        "0.5",
    )


def _check_budget(config: Any) -> None:
    """Refuse a budget that is not a number of tokens."""
    read_section(_CommonOptions, {"max_response_length": config.max_response_length}, POLICY_LOSS)


def option_models() -> tuple[type[Section], ...]:
    """Return the common options, and those of each loss of the catalogue; losses may share them."""
    catalogue.enter_foreign()
    of_losses = (loss.options for loss in catalogue.LOSSES.values())
    return tuple(dict.fromkeys((_CommonOptions, *(each for each in of_losses if each is not None))))


_DEFAULTS = {name: each.default for model in option_models() for name, each in model.model_fields.items()}
LossConfig: Any = make_dataclass(
    "LossConfig",
    [(name, Any, field(default=default)) for name, default in _DEFAULTS.items()],
    bases=(PolicyLossConfig,),
    namespace={
        "__module__": __name__,
        "__doc__": "verl's loss options and ours; ``policy_loss._target_`` selects it, as verl's class "
        "refuses our keys.",
        "__post_init__": _check_budget,
    },
)


def options_of(loss: Loss, policy_loss: Mapping[str, Any]) -> Any:
    """Return a loss's own options, checked.

    Raises:
        SettingError: a value is wrong.
    """
    assert loss.options is not None
    fields = loss.options.model_fields
    given = {name: policy_loss.get(name, each.default) for name, each in fields.items()}
    return read_section(loss.options, given, POLICY_LOSS)


def check_loss(loss: Loss, actor: Mapping[str, Any]) -> None:
    """Check verl's section ``actor_rollout_ref.actor`` against a loss of the catalogue, before any rollout.

    Raises:
        SettingError: ``loss_agg_mode``, ``loss_scale_factor``, an option or the off-policy mask contradicts
            the loss, or a check of its own does.
    """
    _check_aggregation(loss, actor)
    if loss.options is not None:
        options_of(loss, actor["policy_loss"])
    for check in loss.settings:
        check(loss.name, actor)
    if isinstance(loss, TokenLoss):
        read_section(_CommonOptions, {"off_policy_mask_threshold": _mask_threshold(actor)}, POLICY_LOSS)
    else:
        check_no_mask(loss.name, actor)


def check_no_mask(loss_mode: str, actor: Mapping[str, Any]) -> None:
    """Refuse ``off_policy_mask_threshold`` with a loss that does not read it.

    Raises:
        SettingError: it is set.
    """
    if _mask_threshold(actor) is not None:
        raise SettingError(
            _MASK,
            _mask_threshold(actor),
            why=f"policy_loss.loss_mode={loss_mode} does not read it",
            valid="null",
            fix=Line(f"{_MASK}=null"),
        )


def _mask_threshold(actor: Mapping[str, Any]) -> object:
    return (actor.get("policy_loss") or {}).get("off_policy_mask_threshold")


def _check_aggregation(loss: Loss, actor: Mapping[str, Any]) -> None:
    required = mode_of(loss)
    if required is not None and actor["loss_agg_mode"] != required:
        raise SettingError(
            AGGREGATION,
            actor["loss_agg_mode"],
            why=f"with policy_loss.loss_mode={loss.name} verl is to aggregate KL and entropy as the loss "
            "does",
            valid=required,
            fix=Line(f"{AGGREGATION}={required}"),
        )
    if required is None and isinstance(loss, TokenLoss) and actor["loss_agg_mode"] not in LOSS_AGG_MODES:
        raise SettingError(
            AGGREGATION,
            actor["loss_agg_mode"],
            why=f"the loss {loss.name} averages as this key says",
            valid=LOSS_AGG_MODES,
            fix=Line(f"{AGGREGATION}={LOSS_AGG_MODES[0]}"),
        )
    if required == CONSTANT_LENGTH.mode and not is_positive(actor["loss_scale_factor"]):
        raise SettingError(
            SCALE_FACTOR,
            actor["loss_scale_factor"],
            why=f"policy_loss.loss_mode={loss.name} divides by a constant length (with null verl would take "
            "the longest response of each micro-batch)",
            valid="a number > 0, the response budget",
            fix=Line(f"{SCALE_FACTOR}=${{data.max_response_length}}"),
        )
