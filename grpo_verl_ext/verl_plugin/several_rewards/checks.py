"""The record of the feature several rewards, and the check of its settings before any rollout."""

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.requires import OUR_MODES, If, In, Trainer, refused
from grpo_verl_ext.rewards import weighted_sum
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import REWARD_MANAGER, SECTION, setting
from grpo_verl_ext.verl_plugin.features import OTHER_REWARDS, Feature

_KEYS = "algorithm.gdpo_reward_keys"
_FEWEST = 2
_REPORTED_BY_VERLS = ("score", "acc")
"""Numbers that a reward function of verl 0.9's reports, for one data source or another."""


def _check_rewards(config: DictConfig) -> None:
    """Refuse GDPO with fewer than two rewards, or with one that the function which is asked does not report.

    That is known of this package's function and of verl's. verl asks its reward server where one is enabled.

    Raises:
        SettingError: the first wrong setting.
    """
    if not catalogue.learns_from_several_rewards(config):
        return
    given, function = setting(config, _KEYS, []), config.reward.custom_reward_function
    names = [given] if isinstance(given, str) else list(given)
    if len(set(names)) < _FEWEST or len(set(names)) < len(names):
        raise SettingError(
            _KEYS,
            names,
            why="GDPO normalises each of several rewards on its own (arXiv 2601.05242)",
            valid="two or more different names that the reward function returns beside its score",
            fix=Line(f"{_KEYS}=[correctness,format]", more=", or for one reward: +algo=grpo"),
        )
    is_naive = setting(config, "reward.reward_manager.name") == "naive"
    reported = weighted_sum.reported_names(function) if is_naive else None
    if reported is not None and not {*names} <= {*reported}:
        kept = [name for name in names if name in reported]
        typed = [*kept, *(name for name in reported if name not in kept)][: len(names)]
        raise SettingError(
            _KEYS,
            names,
            why=f"the reward function {weighted_sum.__name__} reports no "
            f"{' or '.join(name for name in names if name not in reported)} with these reward_kwargs",
            valid=reported,
            fix=Line(f"{_KEYS}=[{','.join(typed)}]"),
        )
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


_SEVERAL_REWARDS = Feature(
    name="several-rewards",
    used=catalogue.learns_from_several_rewards,
    requires=(
        *refused(
            Trainer(OUR_MODES, "shows the estimator the sum of the rewards alone"),
            In(
                f"{SECTION}.scale_rewards",
                ("group", None),
                "is not a reward's standard deviation in the group, by which GDPO divides (arXiv 2601.05242)",
            ),
            In(
                "reward.reward_manager.name",
                ("naive",),
                "adds the model's score to the reward of whole responses, which the estimator does not read",
                when=If("reward.reward_manager.name", (REWARD_MANAGER,)),
                line=Line("reward.reward_manager.name=naive", without=(f"{SECTION}.reward_model",)),
            ),
        ),
        *OTHER_REWARDS,
    ),
    checks={"reported-rewards": _check_rewards},
    trainer=".several_rewards.trainer:SeveralRewardsMixin",
)
