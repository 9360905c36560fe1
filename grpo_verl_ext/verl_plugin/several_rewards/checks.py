"""The record of the feature several rewards, and the check of its settings before any rollout."""

import math
from collections.abc import Iterator
from numbers import Real

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.verls import advise_no_filter
from grpo_verl_ext.rewards import weighted_sum
from grpo_verl_ext.utils.errors import Line, Problem, SettingError
from grpo_verl_ext.utils.keys import SECTION, setting
from grpo_verl_ext.verl_plugin.features import Feature, Refusal

_KEYS, _WEIGHTS = "algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"
_FEWEST = 2
_REPORTED_BY_VERLS = ("score", "acc")
"""Numbers that a reward function of verl 0.9's reports, for one data source or another."""


def check_rewards(config: DictConfig) -> None:
    """Refuse GDPO with fewer than two rewards, weights that do not fit them, or another standard deviation.

    Raises:
        SettingError: the first wrong setting.
    """
    if not catalogue.learns_from_several_rewards(config):
        return
    names = _names(config)
    if len(set(names)) < _FEWEST or len(set(names)) < len(names):
        raise SettingError(
            _KEYS,
            names,
            why="GDPO normalises each of several rewards on its own (arXiv 2601.05242)",
            valid="two or more different names that the reward function returns beside its score",
            fix=Line(f"{_KEYS}=[correctness,format]", more=", or for one reward: +algo=grpo"),
        )
    _check_weights(names, setting(config, _WEIGHTS))
    scale = setting(config, f"{SECTION}.scale_rewards", "group")
    if scale != "group":
        raise SettingError(
            f"{SECTION}.scale_rewards",
            scale,
            why="GDPO divides each reward by its standard deviation in the group (arXiv 2601.05242)",
            valid="group",
            fix=Line(f"{SECTION}.scale_rewards=group"),
        )


def _names(config: DictConfig) -> list[str]:
    given = setting(config, _KEYS, [])
    return [given] if isinstance(given, str) else list(given)


def _check_weights(names: list[str], weights: object) -> None:
    if weights is None:
        return
    given = list(weights) if hasattr(weights, "__iter__") else [weights]
    numbers = all(isinstance(each, Real) and math.isfinite(each) for each in given)
    if len(given) != len(names) or not numbers or not any(given):
        raise SettingError(
            _WEIGHTS,
            given,
            why=f"{_KEYS} has {len(names)} names",
            valid=f"{len(names)} finite numbers, not all 0, or null",
            fix=Line(f"{_WEIGHTS}=[{','.join(['1.0'] * len(names))}]"),
        )


def check_reported_rewards(config: DictConfig) -> None:
    """Refuse rewards that the function which is asked does not report: this package's, or one of verl's.

    verl asks its reward server where one is enabled, else a function of its own, if none is configured.

    Raises:
        SettingError: names them.
    """
    if not catalogue.learns_from_several_rewards(config):
        return
    names, function = _names(config), config.reward.custom_reward_function
    is_naive = setting(config, "reward.reward_manager.name") == "naive"
    reported = weighted_sum.reported_names(function) if is_naive else None
    if reported is not None and not {*names} <= {*reported}:
        raise _not_reported(names, reported)
    served = bool(setting(config, "reward.reward_model.enable"))
    missing = [name for name in names if served or name not in _REPORTED_BY_VERLS]
    if function.path is None and (is_naive or served) and missing:
        key, at_most = "reward.custom_reward_function.path", " and ".join(_REPORTED_BY_VERLS)
        raise SettingError(
            key,
            None,
            why=f"{_KEYS} names {', '.join(missing)}, and verl's own reward "
            + ("model reports nothing" if served else f"function reports at most {at_most}"),
            valid="a file or module with yours",
            fix=Line(f"{key}=<file>"),
        )


def _not_reported(names: list[str], reported: list[str]) -> SettingError:
    kept = [name for name in names if name in reported]
    typed = [*kept, *(name for name in reported if name not in kept)][: len(names)]
    return SettingError(
        _KEYS,
        names,
        why=f"the reward function {weighted_sum.__name__} reports no "
        f"{' or '.join(name for name in names if name not in reported)} with these reward_kwargs",
        valid=reported,
        fix=Line(f"{_KEYS}=[{','.join(typed)}]"),
    )


def _advise_filter(config: DictConfig) -> Iterator[Problem]:
    """Warn of dynamic sampling, which drops prompts for one number of several."""
    if catalogue.learns_from_several_rewards(config):
        yield from advise_no_filter(
            config,
            f"which may differ in the others of {_KEYS}, and changes the batch by whose spread GDPO divides",
        )


_APART = (
    "algorithm.adv_estimator=gdpo_outcome learns from the rewards of algorithm.gdpo_reward_keys alone, and "
)

SEVERAL_REWARDS = Feature(
    uses={"several_rewards": catalogue.learns_from_several_rewards},
    without_our_mode="algorithm.adv_estimator=gdpo_outcome is shown the sum of the rewards alone there",
    refusals=(
        Refusal(
            ("several_rewards",),
            ("kl_in_reward",),
            "algorithm.use_kl_in_reward",
            f"{_APART}this KL is subtracted from their sum",
            "false",
            Line("algorithm.use_kl_in_reward=false", "actor_rollout_ref.actor.use_kl_loss=true"),
        ),
        Refusal(
            ("several_rewards",),
            ("overlong",),
            "reward.reward_kwargs.overlong_buffer_cfg.enable",
            f"{_APART}verl's punishment of long responses is added to their sum",
            "false, and a reward of yours that punishes",
            Line("reward.reward_kwargs.overlong_buffer_cfg.enable=false"),
        ),
        Refusal(
            ("several_rewards",),
            ("response_models",),
            "reward.reward_manager.name",
            f"{_APART}the models of algorithm.grpo_ext.reward_model and …reward_models, or of verl's server, "
            "add to their sum",
            "a weight of 0 for each of them, which only reports its score",
            Line(
                "reward.reward_manager.name=naive",
                without=(f"{SECTION}.reward_model", f"{SECTION}.reward_models"),
                more=", or ++algorithm.grpo_ext.reward_model.weight=0",
            ),
        ),
    ),
    checks={"several-rewards": check_rewards, "reported-rewards": check_reported_rewards},
    advice={"several-rewards-filter": _advise_filter},
    trainer="several_rewards.trainer:SeveralRewardsMixin",
)
