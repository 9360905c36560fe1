"""Losses to call: one function for each algorithm of the catalogue whose loss is this package's own.

    loss, metrics = losses.gvpo(log_prob, old_log_prob, response_mask, rewards=rewards, groups=prompts)
    loss.backward()

verl is not imported, but the code is what verl calls in a training with the preset, whose values are the
defaults (`catalogue.evaluation`). ``help(losses.gvpo)`` has formula and example; ``dir(losses)`` the names.
Functions are made from records, a stranger's too, when they are first asked for. Terms beside the loss,
KL and entropy, are the trainer's, as are DAPO's filter and punishment of long responses.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms.groups import dense_group_ids
from grpo_verl_ext.algorithms.validation import TensorError, check_floating, check_matrix, check_same_shape
from grpo_verl_ext.catalogue import (
    Algorithm,
    Estimator,
    GroupLoss,
    Loss,
    Preset,
    TokenLoss,
    counts_prompts,
    evaluation,
)
from grpo_verl_ext.catalogue.averages import CONSTANT_LENGTH
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.options import read_section

_CLIPS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
_ARGUMENTS = ("log_prob", "old_log_prob", "response_mask")
_OF_TOKEN_LOSSES = {
    "off_policy_mask_threshold": "nats per token; responses with A < 0 that moved further get no gradient.",
    "rollout_is_weights": "weights of the tokens, (B, T), constants.",
}
"""What every loss of tokens takes besides its settings, with its description."""


_OneCallLoss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""A function of this module: (B, T) tensors → loss (), metrics () each."""


def __getattr__(name: str) -> _OneCallLoss:
    """Return the function of an algorithm."""
    catalogue.enter_foreign()
    algorithm = catalogue.ALGORITHMS.get(name)
    if algorithm is None:
        raise AttributeError(f"module {__name__!r} has no {name!r}; valid are {', '.join(__dir__())}")
    if algorithm.no_call:
        raise AttributeError(f"module {__name__!r} has no {name!r}: {algorithm.no_call}")
    if not _is_own(algorithm):
        raise AttributeError(
            f"module {__name__!r} has no {name!r}: its loss, {algorithm.loss.name}, is verl's own. "
            f"Type: verl.trainer.ppo.core_algos.get_policy_loss_fn({algorithm.loss.name!r})"
        )
    return _function_named(name)


def __dir__() -> list[str]:
    catalogue.enter_foreign()
    return sorted(name for name, each in catalogue.ALGORITHMS.items() if _is_own(each))


def _is_own(algorithm: Algorithm) -> bool:
    return isinstance(algorithm.loss, TokenLoss | GroupLoss) and not algorithm.no_call


@functools.cache
def _function_named(name: str) -> _OneCallLoss:
    algorithm = catalogue.ALGORITHMS[name]
    signature = _signature(algorithm)

    def function(*args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return _evaluated(algorithm, given.arguments)

    function.__name__ = function.__qualname__ = algorithm.name
    function.__doc__ = _doc_of(algorithm)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


# Arguments


def _takes_rewards(algorithm: Algorithm) -> bool:
    return isinstance(algorithm.estimator, Estimator) and not algorithm.estimator.needs_steps


def _signature(algorithm: Algorithm) -> inspect.Signature:
    kind, empty = inspect.Parameter, inspect.Parameter.empty
    others: dict[str, Any] = {"advantages": None}
    if _takes_rewards(algorithm):
        others["rewards"] = None
    if _takes_rewards(algorithm) or counts_prompts(algorithm.loss):
        others["groups"] = None
    if algorithm.loss_agg_mode == CONSTANT_LENGTH.mode:
        others["loss_scale_factor"] = empty
    others |= _settings(algorithm)
    if isinstance(algorithm.loss, TokenLoss):
        others |= dict.fromkeys(_OF_TOKEN_LOSSES)
    positional = [kind(name, kind.POSITIONAL_OR_KEYWORD) for name in _ARGUMENTS]
    named = [kind(name, kind.KEYWORD_ONLY, default=value) for name, value in others.items()]
    return inspect.Signature([*positional, *named])


def _preset_of(algorithm: Algorithm) -> Preset:
    return catalogue.PRESETS.get(algorithm.values_of or algorithm.name, Preset())


def _settings(algorithm: Algorithm) -> dict[str, Any]:
    """Return the keys that loss and estimator read, with the preset's values."""
    preset = _preset_of(algorithm)
    settings: dict[str, Any] = {key: value for key, value in preset.numbers.items() if key != _CLIPS[0]}
    if algorithm.loss.options is not None:
        settings |= {name: each.default for name, each in algorithm.loss.options.model_fields.items()}
        settings |= preset.options
    if isinstance(algorithm.estimator, Estimator) and _takes_rewards(algorithm):
        if algorithm.estimator.several_rewards:
            settings["reward_weights"] = None
        elif algorithm.estimator.baseline is None:
            settings["scale_rewards"] = preset.scale_rewards or next(iter(evaluation.BASELINES))
    if algorithm.loss.needs is not None and not algorithm.loss.needs.of_prompts:
        settings["seed"] = 0
    return settings


def _config(algorithm: Algorithm, given: Mapping[str, Any], prompts: int | None) -> DictConfig:
    """Return the arguments as the keys of verl's ActorConfig that losses and averages read."""
    mask, loss, numbers = given["response_mask"], algorithm.loss, _preset_of(algorithm).numbers
    options = loss.options.model_fields if loss.options else ()
    threshold = {"off_policy_mask_threshold": _plain(given.get("off_policy_mask_threshold"))}
    of_loss = {"loss_mode": loss.name} | threshold | {name: _plain(given[name]) for name in options}
    counts = {"dp_size": 1, "batch_num_tokens": int(mask.bool().sum()), "global_batch_size": len(mask) or 1}
    config: DictConfig = OmegaConf.create(
        dict.fromkeys(_CLIPS)
        # what verl takes where a side has no value
        | {"clip_ratio": numbers.get("clip_ratio", 0.2 if {*_CLIPS[1:3]} <= given.keys() else None)}
        | {name: _plain(given[name]) for name in (*numbers, "seed") if name in given}
        | {
            "loss_agg_mode": algorithm.loss_agg_mode,
            "loss_scale_factor": _plain(given.get("loss_scale_factor")),
            "use_dynamic_bsz": False,
            "rollout_n": len(mask) / prompts if prompts else 1,
            "global_batch_info": counts,
            "policy_loss": of_loss,
        }
    )
    for check in loss.settings:
        check(config)
    return config


def _plain(value: Any) -> Any:
    """Return the Python number of a number of torch's or numpy's; all else as it is."""
    return value.item() if hasattr(value, "item") else value


# What is computed of them


def _evaluated(algorithm: Algorithm, given: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    check_matrix(response_mask=given["response_mask"])
    mask = given["response_mask"].bool()
    loss, given = algorithm.loss, {**given, "response_mask": mask}
    log_probs = {name: given[name] for name in _ARGUMENTS[:2]}
    check_floating(**log_probs)
    check_same_shape(response_mask=mask, **log_probs)
    group = _group_of(algorithm, given)
    config = _config(algorithm, given, None if group is None else len({*group.tolist()}))
    advantages = _advantages(algorithm, given, group)
    check_floating(advantages=advantages)
    check_same_shape(response_mask=mask, advantages=advantages)
    tokens = evaluation.Tokens(given["log_prob"], given["old_log_prob"].detach(), advantages.detach(), mask)
    if group is None:
        group = torch.arange(len(mask), device=mask.device)
    options: Any = None
    if (model := loss.options) is not None:
        own = {name: _plain(given[name]) for name in model.model_fields}
        options = read_section(model, own, algorithm.name)
    statistic: Any = evaluation.statistic(loss, tokens, group, config, int(config.get("seed", 0)))
    if isinstance(loss, GroupLoss):
        groups = evaluation.group_rows(tokens, group, statistic, options.gvpo_alpha)
        found = evaluation.group_loss(options, tokens, groups, config)
        return found.loss, found.metrics
    assert isinstance(loss, TokenLoss)
    return evaluation.token_loss(loss, tokens, config, statistic, given["rollout_is_weights"])


def _group_of(algorithm: Algorithm, given: Mapping[str, Any]) -> Tensor | None:
    groups, mask = given.get("groups"), given["response_mask"]
    if groups is None:
        if given.get("rewards") is not None or counts_prompts(algorithm.loss):
            raise TensorError(
                f"groups is None; {algorithm.name} compares the responses to a prompt; valid is (B,), one "
                f"prompt id a row. Pass groups=<{len(mask)} ids>"
            )
        return None
    group = dense_group_ids(groups.tolist() if isinstance(groups, Tensor) else groups, mask.device)
    check_same_shape(response_mask=mask[:, 0], groups=group)
    return group


@torch.no_grad()
def _advantages(algorithm: Algorithm, given: Mapping[str, Any], group: Tensor | None) -> Tensor:
    """Return the advantages that were given, or those of the rewards: (B, T)."""
    advantages, rewards, mask = given["advantages"], given.get("rewards"), given["response_mask"]
    if (advantages is None) == (rewards is None):
        valid = "advantages, or rewards with groups" if _takes_rewards(algorithm) else "advantages"
        raise TensorError(
            f"{algorithm.name} has {'neither' if rewards is None else 'both'} advantages and rewards; valid "
            f"is one of them. Pass {valid}"
        )
    if rewards is None:
        assert isinstance(advantages, Tensor)
        return advantages
    estimator = algorithm.estimator
    assert isinstance(estimator, Estimator)
    assert group is not None
    check_floating(rewards=rewards)
    # As in a training: their sums are fp32 or better.
    rewards = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    if given.get("scale_rewards", "none") not in evaluation.BASELINES:
        key, names = "scale_rewards", tuple(evaluation.BASELINES)
        raise SettingError(key, given[key], valid=names, fix=f"{key}='{names[0]}'")
    member, learnt, weights = torch.ones_like(group, dtype=torch.bool), mask.bool(), None
    if estimator.several_rewards:
        check_matrix(rewards=rewards)
        if given["reward_weights"] is not None:
            weights = [float(each) for each in given["reward_weights"]]
    else:
        check_same_shape(response_mask=mask[:, 0], rewards=rewards)
    found = evaluation.response_advantages(
        estimator, rewards, group, member, learnt, scale_rewards=given.get("scale_rewards"), weights=weights
    )
    return evaluation.token_advantages(estimator, found.to(rewards.dtype), mask, learnt, group)


# Docstrings

_DOC = """Compute the loss ``{name}`` of one mini-batch, and its metrics: (B, T) → (), () each.

{source}. The preset is ``+algo={preset}``, whose values are the defaults.

{advantages}Loss: {loss}

Average, with D = 1 rank: {average}

Gradient flows through ``log_prob`` alone. What stands under the mask, NaN included, reaches neither value nor
gradient. KL and entropy terms are not part of it.

Args:
    log_prob: log π_θ of the sampled tokens, (B, T), nats.
    old_log_prob: the same under the policy before the updates, a constant.
    response_mask: nonzero on the tokens that the policy wrote, (B, T).
    advantages: (B, T), where they are computed already.
{arguments}
Returns:
    The loss, and metrics by the names that verl logs.

Raises:
    TensorError: shapes or dtypes that do not fit, or neither advantages nor rewards.
    SettingError: a setting has a wrong value.

Example:
    >>> import torch
    >>> from grpo_verl_ext import losses
    >>> log_prob = torch.tensor([[-1.0, -2.0], [-1.5, -0.5]], requires_grad=True)
    >>> response_mask = torch.tensor([[1, 1], [1, 0]])
    >>> loss, metrics = losses.{name}(
    ...     log_prob, log_prob.detach(), response_mask,
    ...     {given},
    ... )
    >>> loss.backward()
    >>> bool(log_prob.grad[0].max() < 0 < log_prob.grad[1, 0])  # the better response becomes likelier
    True
    >>> log_prob.grad[1, 1].item()  # under the mask
    0.0
"""


def _doc_of(algorithm: Algorithm) -> str:
    loss, estimator = algorithm.loss, algorithm.estimator
    formula = loss.doc
    if isinstance(loss, TokenLoss):
        formula = loss.doc or str(loss.per_token.__doc__)
    average = loss.average.doc if isinstance(loss, TokenLoss) and loss.average else ""
    lines, given = [], ["advantages=torch.tensor([[0.5, 0.5], [-0.5, 0.0]])"]
    advantages = ""
    if isinstance(estimator, Estimator) and _takes_rewards(algorithm):
        several = estimator.several_rewards
        advantages = f"Advantages of ``rewards``: {_before_sections(estimator.doc)}\n\n"
        shape = "(B, M), M rewards of each response" if several else "(B,), one for each response"
        lines += [f"rewards: in the place of advantages; {shape}.", "groups: (B,), a prompt id a row."]
        given = [f"rewards=torch.tensor({[[1.0], [0.0]] if several else [1.0, 0.0]})", 'groups=["a", "a"]']
    if algorithm.loss_agg_mode == CONSTANT_LENGTH.mode:
        lines.append("loss_scale_factor: L, the generation budget in tokens.")
        given.append("loss_scale_factor=2")
    lines += [f"{name}: {_described(loss, name)}" for name in _settings(algorithm)]
    if isinstance(loss, TokenLoss):
        lines += [f"{name}: {description}" for name, description in _OF_TOKEN_LOSSES.items()]
    return _DOC.format(
        source=", ".join(filter(None, (algorithm.title, algorithm.paper))),
        preset=algorithm.values_of or algorithm.name,
        advantages=advantages,
        loss=_before_sections(formula),
        average=_before_sections(
            average or f"as ``loss_agg_mode={algorithm.loss_agg_mode}``, over P prompts."
        ),
        arguments="".join(f"    {line}\n" for line in lines),
        name=algorithm.name,
        given=", ".join(given),
    )


def _before_sections(doc: str) -> str:
    """Return a docstring as far as its arguments and errors."""
    return re.split(r"^(?:Args|Attributes|Raises):$", inspect.cleandoc(doc), maxsplit=1, flags=re.M)[
        0
    ].strip()


def _described(loss: Loss, name: str) -> str:
    """Return what a setting is, as on the page of settings."""
    fields = loss.options.model_fields if loss.options else {}
    if name in fields:
        return f"{fields[name].description}."
    return {
        "scale_rewards": f"standard deviation to divide by: {', '.join(evaluation.BASELINES)}.",
        "reward_weights": "weights of the rewards, 1 each by default.",
        "seed": "of what is drawn; another one at each update.",
    }.get(name, "as verl's key of this name.")
