"""The records of step rewards and of several rewards, and the checks of their settings."""

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.requires import OUR_MODES, If, In, NoneWith, Trainer, refused
from grpo_verl_ext.rewards import weighted_sum
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import AGENT_LOOP, REWARD_MANAGER, SECTION, setting
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS
from grpo_verl_ext.verl_plugin.features import OTHER_REWARDS, Feature
from grpo_verl_ext.verl_plugin.rollout.checks import check_loops_of_data

_FUNCTION, _MANAGER = "reward.custom_reward_function", "reward.reward_manager.name"
_GIVEN = f"{_FUNCTION}.reward_kwargs.step_rewards"
_KEYS = "algorithm.gdpo_reward_keys"
_FEWEST = 2
_REPORTED_BY_VERLS = ("score", "acc")
"""Numbers that a reward function of verl 0.9's reports, for one data source or another."""


def _check_steps(config: DictConfig) -> None:
    """Refuse ``grpo_process`` with data that ask for a loop without steps, or a function that reports none.

    What a function reports is known where this package's loops and a manager that keeps it are configured.
    """
    if not catalogue.learns_from_steps(config):
        return
    needs = "algorithm.adv_estimator=grpo_process needs"
    check_loops_of_data(config, AGENT_LOOPS, f"{needs} one that keeps step rewards", "+algo=grpo")
    is_kept = setting(config, _MANAGER) in ("naive", REWARD_MANAGER)
    if not is_kept or setting(config, AGENT_LOOP) not in AGENT_LOOPS.values():
        return
    path, key = config.reward.custom_reward_function.path, f"{_FUNCTION}.path"
    why, written = f"{needs} the step_rewards of a reward function", setting(config, _GIVEN)
    if path is None:
        raise SettingError(key, None, why=why, valid="a file or module with yours", fix=f"{key}=<file>")
    if path == f"pkg://{weighted_sum.__name__}" and not written:
        raise SettingError(_GIVEN, written, why=why, valid="true", fix=Line(f"++{_GIVEN}=true"))


def _check_rewards(config: DictConfig) -> None:
    """Refuse GDPO with fewer than two rewards, or with one that the function which is asked does not report.

    That is known of this package's function and of verl's. verl asks its reward server where one is enabled.
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
    is_naive = setting(config, _MANAGER) == "naive"
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
        at_most = f"function reports at most {' and '.join(_REPORTED_BY_VERLS)}"
        raise SettingError(
            f"{_FUNCTION}.path",
            None,
            why=f"{_KEYS} names {', '.join(missing)}, and verl's own reward "
            + ("model reports nothing" if served else at_most),
            valid="a file or module with yours",
            fix=Line(f"{_FUNCTION}.path=<file>"),
        )


_STEP_REWARDS = Feature(
    name="steps",
    used=catalogue.learns_from_steps,
    requires=(
        *refused(
            Trainer(OUR_MODES, "does not show the estimator the steps"),
            *(
                NoneWith(AGENT_LOOP, verls, "drops step rewards", line=Line(f"{AGENT_LOOP}={ours}"))
                for verls, ours in AGENT_LOOPS.items()
            ),
        ),
        *OTHER_REWARDS,
    ),
    checks={"reported-steps": _check_steps},
    trainer=".other_rewards.trainer:OtherRewardsMixin",
    agent_loops=dict.fromkeys(AGENT_LOOPS.values(), ".rollout.agent_loops"),
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
                _MANAGER,
                ("naive",),
                "adds the model's score to the reward of whole responses, which the estimator does not read",
                when=If(_MANAGER, (REWARD_MANAGER,)),
                line=Line(f"{_MANAGER}=naive", without=(f"{SECTION}.reward_model",)),
            ),
        ),
        *OTHER_REWARDS,
    ),
    checks={"reported-rewards": _check_rewards},
)
