"""Losses to call: one function for each algorithm of the catalogue whose loss is this package's own.

    loss, metrics = losses.gvpo(log_prob, old_log_prob, response_mask, rewards=rewards, groups=prompts)
    loss.backward()

verl is not imported, but the code is what verl calls in a training with the preset, whose values are the
defaults (`catalogue.compute`). ``help(losses.gvpo)`` has formula and example; ``dir(losses)`` the names.
A function is made from its record, another package's too, when it is first asked for. KL and entropy terms
are left to the trainer, as are DAPO's filter and punishment of long responses.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from grpo_verl_ext import catalogue
from grpo_verl_ext.algorithms.groups import dense_group_ids
from grpo_verl_ext.algorithms.validation import TensorError, check_floating, check_matrix, check_same_shape
from grpo_verl_ext.catalogue import Algorithm, Estimator, GroupLoss, Preset, TokenLoss, compute
from grpo_verl_ext.catalogue.record import CLIPS, INPUTS
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.options import is_count, is_number

_ARGUMENTS = ("log_prob", "old_log_prob", "response_mask")
_COLUMNS = {*_ARGUMENTS, *INPUTS}
_COLUMNS |= {"advantages", "rewards", "groups", "reward_weights", "rollout_is_weights", "counts"}
"""Arguments that are no number or name."""

_OneCallLoss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""A function of this module: (B, T) tensors → loss (), metrics () each."""


def __getattr__(name: str) -> _OneCallLoss:
    """Return the function of an algorithm."""
    valid, algorithm, kind = __dir__(), catalogue.ALGORITHMS.get(name), inspect.Parameter
    if algorithm is None:
        raise AttributeError(f"module {__name__!r} has no {name!r}; valid are {', '.join(valid)}")
    if name not in valid:
        verls = (
            f"its loss, {algorithm.loss.name}, is verl's own. "
            f"Type: verl.trainer.ppo.core_algos.get_policy_loss_fn({algorithm.loss.name!r})"
        )
        raise AttributeError(f"module {__name__!r} has no {name!r}: {algorithm.no_call or verls}")
    preset = catalogue.PRESETS.get(algorithm.values_of or name, Preset())
    keywords = _keywords(algorithm, preset)
    positional = [kind(each, kind.POSITIONAL_OR_KEYWORD) for each in _ARGUMENTS]
    named = [kind(each, kind.KEYWORD_ONLY, default=default) for each, (default, _) in keywords.items()]
    signature = inspect.Signature([*positional, *named])

    def function(*args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return _evaluated(algorithm, preset, given.arguments)

    function.__name__ = function.__qualname__ = algorithm.name
    function.__doc__ = _doc_of(algorithm, {each: words for each, (_, words) in keywords.items()})
    function.__signature__ = signature  # type: ignore[attr-defined]
    globals()[name] = function  # found there from now on
    return function


def __dir__() -> list[str]:
    catalogue.enter_foreign()
    callable_ = (each for each in catalogue.ALGORITHMS.values() if not each.no_call)
    return sorted(each.name for each in callable_ if isinstance(each.loss, TokenLoss | GroupLoss))


# Arguments


def _keywords(algorithm: Algorithm, preset: Preset) -> dict[str, tuple[Any, str]]:
    """Return name → (default, the preset's where it has one, and description) of all but `_ARGUMENTS`."""
    loss, estimator = algorithm.loss, algorithm.estimator
    fields = loss.options.model_fields if loss.options else {}
    found: dict[str, tuple[Any, str]] = {"advantages": (None, "(B, T), where they are computed already.")}
    of_rewards: dict[str, tuple[Any, str]] = {}
    if isinstance(estimator, Estimator) and not estimator.needs_steps:
        shape = "(B,), one for each response"
        if estimator.several_rewards:
            shape = "(B, M), M rewards of each response"
            of_rewards["reward_weights"] = (None, "weights of the rewards, 1 each by default.")
        elif estimator.baseline is None:
            names = tuple(compute.BASELINES)
            words = f"standard deviation to divide by: {', '.join(names)}."
            of_rewards["scale_rewards"] = (preset.scale_rewards or names[0], words)
        found["rewards"] = (None, f"in the place of advantages; {shape}.")
    if "rewards" in found or catalogue.counts_prompts(loss):
        found["groups"] = (None, "(B,), a prompt id a row.")
    asked = [name for name in getattr(loss, "inputs", ()) if name != "statistic"]
    found |= {name: (inspect.Parameter.empty, f"{INPUTS[name]}; (B, T), a constant.") for name in asked}
    if algorithm.loss_agg_mode == "seq-mean-token-sum-norm":
        found["loss_scale_factor"] = (inspect.Parameter.empty, "L, the generation budget in tokens.")
    for key, value in preset.numbers.items():
        if key != CLIPS[0]:
            found[key] = (value, "as verl's key of this name.")
    for name, each in fields.items():
        found[name] = (preset.options.get(name, each.default), f"{each.description}.")
    found |= of_rewards
    if loss.needs is not None and not loss.needs.of_prompts:
        found["seed"] = (0, "of the random draws; change it at each update.")
    if isinstance(loss, TokenLoss):
        words = "nats per token; responses with A < 0 that moved further get no gradient."
        found["off_policy_mask_threshold"] = (None, words)
        found["rollout_is_weights"] = (None, "weights of the tokens, (B, T), constants.")
    words = "(tokens, responses, prompts) of the mini-batch, if the rows are some of its prompts, each whole"
    words += "; the losses of its parts then add up to that of the mini-batch."
    if "seed" in found:
        words = "refused: the loss compares a response with the whole mini-batch, so pass all its rows."
    elif of_rewards:
        words += ' Refused where rewards are compared in it: several rewards, or scale_rewards="batch".'
    found["counts"] = (None, words)
    return found


# What is computed of them


def _evaluated(
    algorithm: Algorithm, preset: Preset, given: dict[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    check_matrix(response_mask=given["response_mask"])
    loss, mask = algorithm.loss, given["response_mask"].bool()
    # A number of torch's or numpy's is a number.
    plain = {name: x.item() if hasattr(x, "item") else x for name, x in given.items() if name not in _COLUMNS}
    ids, group = given.get("groups"), None
    if ids is not None:
        group = dense_group_ids(ids.tolist() if isinstance(ids, Tensor) else ids, mask.device)
        check_same_shape(response_mask=mask[:, 0], groups=group)
    elif given.get("rewards") is not None or catalogue.counts_prompts(loss):
        raise TensorError(
            f"groups is None; {algorithm.name} compares the responses to a prompt; valid is (B,), one "
            f"prompt id a row. Pass groups=<{len(mask)} ids>"
        )
    key = "off_policy_mask_threshold"
    if (threshold := plain.get(key)) is not None and not (is_number(threshold) and threshold > 0):
        raise SettingError(key, threshold, valid="a finite number > 0", fix=f"{key}=0.5")
    config = compute.config_of(algorithm, preset, plain, _counts(algorithm, given, mask, group))
    for check in loss.settings:
        check(config)
    columns = {name: given[name] for name in _ARGUMENTS[:2]}
    columns["advantages"] = _advantages(algorithm, given, mask, group)
    check_floating(**columns)
    check_same_shape(response_mask=mask, log_prob=columns["log_prob"])
    log_prob, old_log_prob, advantages = columns.values()
    tokens = compute.Tokens(log_prob, old_log_prob.detach(), advantages.detach(), mask)
    if group is None:
        group = torch.arange(len(mask), device=mask.device)
    options: Any = None
    if loss.options is not None:
        own = {name: plain[name] for name in loss.options.model_fields}
        options = loss.options.read(own, algorithm.name)
    inputs = {name: given[name] for name in INPUTS if name in given}
    inputs |= compute.statistic(loss, tokens, group, config, int(config.get("seed", 0)))
    if isinstance(loss, GroupLoss):
        groups = compute.group_rows(tokens, group, inputs["statistic"], options.gvpo_alpha)
        found = compute.group_loss(options, tokens, groups, config)
        return found.loss, found.metrics
    assert isinstance(loss, TokenLoss)
    return compute.token_loss(loss, tokens, config, inputs, given["rollout_is_weights"])


def _counts(
    algorithm: Algorithm, given: Mapping[str, Any], mask: Tensor, group: Tensor | None
) -> tuple[int, int, int]:
    """Return tokens, responses and prompts of the mini-batch; without groups, each response is a prompt."""
    prompts = len(mask) if group is None else len({*group.tolist()})
    counts, own = given["counts"], (int(mask.sum()), len(mask), prompts)
    if counts is None:
        return own
    least = (*own[:2], prompts if group is not None else 1)
    if len(counts) != 3 or not all(is_count(n) and n >= m for n, m in zip(counts, least, strict=True)):
        raise TensorError(
            f"counts is {counts}; valid are the tokens, responses and prompts of the mini-batch, at least "
            f"{least}. Pass counts={own}, or larger ones"
        )
    needs, has_rewards = algorithm.loss.needs, given["advantages"] is None
    of_all = given.get("scale_rewards") == "batch" or "reward_weights" in given
    if (needs is not None and not needs.of_prompts) or (has_rewards and of_all):
        instead = "all rows, with the other parts' log_prob detached"
        raise TensorError(
            f"counts is {counts}, but {algorithm.name} compares a response with all of the mini-batch; valid "
            f"is None. Pass {'advantages of the mini-batch' if needs is None else instead}"
        )
    return counts[0], counts[1], counts[2]


@torch.no_grad()
def _advantages(algorithm: Algorithm, given: Mapping[str, Any], mask: Tensor, group: Tensor | None) -> Any:
    """Return the advantages that were given, or those of the rewards: (B, T)."""
    advantages, rewards, estimator = given["advantages"], given.get("rewards"), algorithm.estimator
    if (advantages is None) == (rewards is None):
        valid = "advantages, or rewards with groups" if "rewards" in given else "advantages"
        raise TensorError(
            f"{algorithm.name} has {'neither advantages nor' if rewards is None else 'both advantages and'} "
            f"rewards; valid is one of them. Pass {valid}"
        )
    if rewards is None:
        return advantages
    assert isinstance(estimator, Estimator)
    assert group is not None
    rewards = torch.as_tensor(rewards, device=mask.device)
    check_floating(rewards=rewards)
    # As in a training: their sums are fp32 or better.
    rewards = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    scale, weights = given.get("scale_rewards", "none"), given.get("reward_weights")
    if scale not in compute.BASELINES:
        names = tuple(compute.BASELINES)
        raise SettingError("scale_rewards", scale, valid=names, fix=f"scale_rewards='{names[0]}'")
    if estimator.several_rewards:
        check_matrix(rewards=rewards)
    else:
        check_same_shape(response_mask=mask[:, 0], rewards=rewards)
    return compute.token_advantages(
        estimator,
        rewards,
        group,
        mask,
        mask,
        scale_rewards=scale,
        weights=None if weights is None else [float(each) for each in weights],
    )


# Docstrings

_DOC = """Compute the loss ``{name}`` of one mini-batch, and its metrics: (B, T) → (), () each.

{source}. The preset is ``{preset}``, whose values are the defaults.

{advantages}Loss: {loss}

Average, with D = 1 rank: {average}

Gradient flows through ``log_prob`` alone. What stands under the mask, NaN included, reaches neither value nor
gradient. KL and entropy terms are not part of it.

Args:
    log_prob: log π_θ of the sampled tokens, (B, T), nats.
    old_log_prob: the same under the policy before the updates, a constant.
    response_mask: nonzero on the tokens that the policy wrote, (B, T).
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
    >>> bool(log_prob.grad[0].max() < 0 <= log_prob.grad[1, 0])  # the better response becomes likelier
    True
    >>> log_prob.grad[1, 1].item()  # under the mask
    0.0
"""


def _doc_of(algorithm: Algorithm, keywords: Mapping[str, str]) -> str:
    loss, estimator = algorithm.loss, algorithm.estimator
    formula, average = loss.doc, f"as ``loss_agg_mode={algorithm.loss_agg_mode}``, over P prompts."
    if isinstance(loss, TokenLoss):
        formula = loss.doc or str(loss.per_token.__doc__)
        average = str(loss.average.formula.__doc__) if loss.average else average
    advantages, given = "", "advantages=torch.tensor([[0.5, 0.5], [-0.5, 0.0]])"
    if "rewards" in keywords:
        assert isinstance(estimator, Estimator)
        advantages = f"Advantages of ``rewards``: {_before_sections(estimator.doc)}\n\n"
        rewards = [[1.0], [0.0]] if estimator.several_rewards else [1.0, 0.0]
        given = f'rewards=torch.tensor({rewards}), groups=["a", "a"]'
    if "loss_scale_factor" in keywords:
        given += ", loss_scale_factor=2"
    given += "".join(f", {name}=log_prob.detach()" for name in INPUTS if name in keywords)
    return _DOC.format(
        source=", ".join(filter(None, (algorithm.title, algorithm.paper))),
        preset=algorithm.values_of or algorithm.name,
        advantages=advantages,
        loss=_before_sections(formula),
        average=_before_sections(average),
        arguments="".join(f"    {name}: {words}\n" for name, words in keywords.items()),
        name=algorithm.name,
        given=given,
    )


def _before_sections(doc: str) -> str:
    """Return a docstring as far as its arguments and errors."""
    sections = re.split(r"^(?:Args|Attributes|Raises):$", inspect.cleandoc(doc), maxsplit=1, flags=re.M)
    return sections[0].strip()
