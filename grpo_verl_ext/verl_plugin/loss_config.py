"""Options of the losses, a dataclass that verl builds from ``actor.policy_loss``, and their checks."""

from collections.abc import Mapping
from dataclasses import field, make_dataclass
from typing import Any

from verl.workers.config import PolicyLossConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import Loss
from grpo_verl_ext.utils.keys import POLICY_LOSS
from grpo_verl_ext.utils.options import Count, PositiveFloat, Section, option


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
        "__post_init__": lambda config: _CommonOptions.read(
            {"max_response_length": config.max_response_length}, POLICY_LOSS
        ),
    },
)


def options_of(loss: Loss, policy_loss: Mapping[str, Any]) -> Any:
    """Return a loss's own options, checked."""
    assert loss.options is not None
    fields = loss.options.model_fields
    given = {name: policy_loss.get(name, each.default) for name, each in fields.items()}
    return loss.options.read(given, POLICY_LOSS)


def check_loss(loss: Loss, actor: Mapping[str, Any]) -> None:
    """Check options and clips in verl's section ``actor_rollout_ref.actor``, before any rollout."""
    if loss.options is not None:
        options_of(loss, actor["policy_loss"])
    for check in loss.settings:
        check(actor)
    threshold = (actor.get("policy_loss") or {}).get("off_policy_mask_threshold")
    _CommonOptions.read({"off_policy_mask_threshold": threshold}, POLICY_LOSS)
