"""The record of the feature step rewards, and the checks of its settings.

``grpo_process`` must get step rewards, and each token the advantage of its own steps.
"""

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.requires import OUR_MODES, NoneWith, Trainer, refused
from grpo_verl_ext.rewards import weighted_sum
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import AGENT_LOOP, REWARD_MANAGER, setting
from grpo_verl_ext.verl_plugin.batch.agent_names import check_loops_of_data
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS
from grpo_verl_ext.verl_plugin.features import OTHER_REWARDS, Feature


def _check_steps(config: DictConfig) -> None:
    """Refuse ``grpo_process`` with data that ask for a loop without steps, or a function that reports none.

    What a function reports is known where this package's loops and a manager that keeps it are configured.

    Raises:
        SettingError: names the loop, or the function.
    """
    if not catalogue.learns_from_steps(config):
        return
    needs = "algorithm.adv_estimator=grpo_process needs"
    check_loops_of_data(config, AGENT_LOOPS, f"{needs} one that keeps step rewards", "+algo=grpo")
    is_kept = setting(config, "reward.reward_manager.name") in ("naive", REWARD_MANAGER)
    if not is_kept or setting(config, AGENT_LOOP) not in AGENT_LOOPS.values():
        return
    function, key = config.reward.custom_reward_function, "reward.custom_reward_function"
    why, written = f"{needs} the step_rewards of a reward function", setting(config, _GIVEN)
    if function.path is None:
        valid = "a file or module with yours"
        raise SettingError(f"{key}.path", None, why=why, valid=valid, fix=f"{key}.path=<file>")
    if function.path == f"pkg://{weighted_sum.__name__}" and not written:
        raise SettingError(_GIVEN, written, why=why, valid="true", fix=Line(f"++{_GIVEN}=true"))


_GIVEN = "reward.custom_reward_function.reward_kwargs.step_rewards"

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
    trainer=".steps.trainer:ProcessSupervisionMixin",
    agent_loops=dict.fromkeys(AGENT_LOOPS.values(), ".rollout.agent_loops"),
)
