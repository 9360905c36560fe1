"""What an algorithm is: an estimator of advantages, a loss, an average, options, needs, checks and a paper.

A record is an `Algorithm` in its own file. Registration with verl, the checks before a training,
``invariance``, the doctor and the pages of settings all read it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grpo_verl_ext.algorithms.mini_batch import MiniBatchRows
from grpo_verl_ext.catalogue.averages import AVERAGES, Average
from grpo_verl_ext.catalogue.requires import In
from grpo_verl_ext.utils.options import Section

if TYPE_CHECKING:
    from grpo_verl_ext.algorithms.advantages import Baseline
    from grpo_verl_ext.algorithms.surrogate import TokenEvents

PerToken = Callable[..., Tensor]
"""(log_prob, old_log_prob, advantages, response_mask, config), (B, T) each → (B, T), to be minimised.

What stands under the mask does not count, NaN included. Gradient flows through ``log_prob``. ``config`` is
verl's ActorConfig, or what `TokenLoss.keywords` makes of it. What the signature names of `INPUTS` comes by
name.
"""
INPUTS = {
    "statistic": "what the loss `needs` of the mini-batch",
    "rollout_log_prob": "log π of the policy that wrote the response, as its engine computed it, in nats",
    "ref_log_prob": "log π of the reference, in nats",
    "entropy": "of the current policy at each token, in nats",
}
"""What a loss of tokens gets where its signature names it: (B, T) each, constants, 0 under the mask."""
_Events = Callable[..., "TokenEvents"]
"""(log-ratio, advantages, response_mask, config) → the tokens that the loss cut off, for the metrics."""


class RecordError(ValueError):
    """A record contradicts itself or what is there already."""

    def __init__(self, name: str, field_: str, value: object, why: str) -> None:
        super().__init__(f"the algorithm {name}: its {field_} is {value!r}, but {why}")


@dataclass(frozen=True)
class Estimator:
    """What makes the advantages, for ``algorithm.adv_estimator``.

    Attributes:
        name: its name in verl's configuration.
        doc: formula and source, the docstring of the function that verl calls.
        baseline: rewards of a group → advantages; None: ``algorithm.grpo_ext.scale_rewards`` chooses.
        per_prompt_token: advantages carry 1/N_x, N_x the tokens of the prompt's responses.
        sums_to_zero: the advantages of a prompt are weights that must sum to zero, so that a response
            without tokens is not counted and none may be left out.
        one_output: why a session with several outputs is refused; empty if the last one counts.
        needs_steps: learns from the rewards of steps, by `algorithms.process`.
        several_rewards: learns from each reward of ``algorithm.gdpo_reward_keys``, by `advantages.decoupled`.
        kl_in_loss: its paper's loss contains k3 and k3's gradient.
        requires: what it was tested with.
    """

    name: str
    doc: str
    baseline: Baseline | None = None
    per_prompt_token: bool = False
    sums_to_zero: bool = False
    one_output: str = ""
    needs_steps: bool = False
    several_rewards: bool = False
    kl_in_loss: bool = False
    requires: tuple[In, ...] = ()


@dataclass(frozen=True)
class MiniBatchStatistic:
    """What a loss needs to know of rows beyond its micro-batch, at the policy before the update.

    A trainer mode of this package gives the loss the same value however the mini-batch is split into
    micro-batches and ranks: from the training pass where the rows meet in it, else by a forward pass before
    the update; for free at the first update on a rollout, whose log-probs are known.

    Attributes:
        compute: (rows, verl's ActorConfig) → a number for each token, (R, T), or what broadcasts to it. No
            gradient flows.
        of_prompts: the number takes the responses of one prompt alone, which may meet in smaller parts.
        metric: name of a metric for its mean over tokens; empty for none.
    """

    compute: Callable[[MiniBatchRows, Any], Tensor]
    of_prompts: bool = False
    metric: str = ""


CLIPS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
"""verl's keys of a clip of the ratio."""


@dataclass(frozen=True)
class Loss:
    """A policy loss, for ``actor.policy_loss.loss_mode``.

    Attributes:
        name: its name in verl's configuration.
        doc: formula, shapes, where gradient flows and source, where no function's docstring has them.
        options: its own keys of ``actor.policy_loss``.
        one_output: why a session with several outputs is refused; empty if each is a response of its own.
        needs: a statistic of the mini-batch, which a trainer mode of this package gives it.
        settings: refusals of values in verl's section ``actor``, before any rollout.
        requires: what it was tested with.
    """

    name: str
    doc: str = field(default="", kw_only=True)
    options: type[Section] | None = field(default=None, kw_only=True)
    one_output: str = field(default="", kw_only=True)
    needs: MiniBatchStatistic | None = field(default=None, kw_only=True)
    settings: tuple[Callable[[Mapping[str, Any]], None], ...] = field(default=(), kw_only=True)
    requires: tuple[In, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class TokenLoss(Loss):
    """A loss of tokens, averaged over the whole mini-batch; masks, weights and metrics come with it.

    Attributes:
        per_token: the loss of each token.
        average: how tokens are averaged; None: as ``actor.loss_agg_mode`` says.
        events: which tokens its clip cut off; None: it has no clip.
        keywords: verl's ActorConfig → what both get by name in the place of ``config``; None: they get that.
    """

    per_token: PerToken
    average: Average | None = None
    events: _Events | None = None
    keywords: Callable[[Any], Mapping[str, Any]] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a function that names an input which there is not, or a statistic that nothing computes."""
        valid = [name for name in INPUTS if self.needs or name != "statistic"]
        for name in () if self.keywords else [*inspect.signature(self.per_token).parameters][5:]:
            if name not in valid:
                raise RecordError(self.name, "argument", name, f"it gets by name: {', '.join(valid)}")

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """What the function asks for of `INPUTS`."""
        return tuple(name for name in INPUTS if name in inspect.signature(self.per_token).parameters)


@dataclass(frozen=True)
class GroupLoss(Loss):
    """GVPO's loss: it needs all responses of a prompt in each optimizer step, and their mean log-ratio."""


@dataclass(frozen=True)
class VerlsLoss(Loss):
    """A loss of verl's own.

    Attributes:
        exact_preset: what to type for a loss whose gradient, unlike this one's, is the same at any split.
    """

    exact_preset: str = ""


@dataclass(frozen=True)
class VerlsEstimator:
    """An estimator of verl's own, by its name."""

    name: str
    kl_in_loss: bool = False


def own_options(options: type[Section], config: Any) -> dict[str, Any]:
    """Return a loss's keys of ``actor.policy_loss`` by what follows their first underscore."""
    fields, given = options.model_fields, config.policy_loss
    return {name.partition("_")[2]: given.get(name, fields[name].default) for name in fields}


def mode_of(loss: Loss) -> str | None:
    """Return the ``actor.loss_agg_mode`` that a loss needs; None where it averages as that key says."""
    if isinstance(loss, TokenLoss):
        return None if loss.average is None else loss.average.mode
    return "seq-mean-token-sum" if isinstance(loss, GroupLoss) else None


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of a paper: what a training with its preset consists of.

    Attributes:
        name: the preset's, and its file's in ``config/algo``.
        paper: the source.
        average: ``actor.loss_agg_mode`` for a loss that averages as this key says; others have their own.
        paired: estimator and loss are each wrong without the other.
        has_preset: whether a preset of its name chooses it; without, estimator and loss are set by hand.
        fixed: keys that other records leave to their user and this one does not.
        values_of: the preset whose other values it takes where it has none of its own.
        no_call: why `grpo_verl_ext.losses` has no function of it; empty if it has one.
        title: authors and title of the paper.
        fixes: what the paper says is wrong without it, or what it is for, in one line.
    """

    name: str
    paper: str
    estimator: Estimator | VerlsEstimator
    loss: Loss
    average: str = ""
    paired: bool = False
    has_preset: bool = True
    fixed: tuple[str, ...] = field(default=(), kw_only=True)
    values_of: str = field(default="", kw_only=True)
    no_call: str = field(default="", kw_only=True)
    title: str = field(default="", kw_only=True)
    fixes: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse an average that the loss does not have."""
        own = mode_of(self.loss)
        wanted = f"averages by {own}" if own else f"needs one of {', '.join(AVERAGES)}"
        if self.average not in (("", own) if own else AVERAGES):
            raise RecordError(self.name, "average", self.average, f"the loss {self.loss.name} {wanted}")

    @property
    def loss_agg_mode(self) -> str:
        """``actor.loss_agg_mode``: by it verl aggregates KL and entropy, too."""
        return mode_of(self.loss) or self.average
