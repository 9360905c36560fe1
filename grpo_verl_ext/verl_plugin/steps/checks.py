"""The record of the feature step rewards, and the checks of its settings.

``grpo_process`` must get step rewards, and each token the advantage of its own steps.
"""

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.grpo import GRPO_LOSS
from grpo_verl_ext.catalogue.requires import OUR_MODES, NoneWith, Trainer, refused
from grpo_verl_ext.rewards import weighted_sum
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import AGENT_LOOP, LOSS, setting
from grpo_verl_ext.verl_plugin.batch.agent_names import check_loops_of_data
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, REWARD_MANAGER
from grpo_verl_ext.verl_plugin.features import OTHER_REWARDS, Feature


def check_steps(config: DictConfig) -> None:
    """Refuse ``grpo_process`` with data that ask for a loop without steps, or a loss that averages over them.

    Raises:
        SettingError: the agent loop is verl's own, or the loss has one advantage for a response.
    """
    if not catalogue.learns_from_steps(config):
        return
    loss = catalogue.loss_of(config)
    check_loops_of_data(
        config,
        AGENT_LOOPS,
        "algorithm.adv_estimator=grpo_process needs one that keeps step rewards",
        "+algo=grpo",
    )
    if loss is not None and loss.one_advantage:
        raise SettingError(
            LOSS,
            loss.name,
            why="algorithm.adv_estimator=grpo_process has an advantage for each token, and this loss gives "
            "all tokens of a response their mean",
            valid="a loss of tokens",
            fix=Line(f"{LOSS}={GRPO_LOSS.name}"),
        )


def check_reported_steps(config: DictConfig) -> None:
    """Refuse reward functions that report no steps, where steps come from the function.

    They do with this package's agent loops and a reward manager that keeps what the function reports.

    Raises:
        SettingError: it is verl's own, or this package's without its ``step_rewards``.
    """
    keeps_steps = setting(config, AGENT_LOOP) in AGENT_LOOPS.values() and setting(
        config, "reward.reward_manager.name"
    ) in ("naive", REWARD_MANAGER)
    if not (catalogue.learns_from_steps(config) and keeps_steps):
        return
    function, key = config.reward.custom_reward_function, "reward.custom_reward_function"
    why = "algorithm.adv_estimator=grpo_process needs the step_rewards of a reward function"
    if function.path is None:
        raise SettingError(
            f"{key}.path", None, why=why, valid="a file or module with yours", fix=f"{key}.path=<file>"
        )
    written = (function.get("reward_kwargs") or {}).get("step_rewards")
    if function.path == f"pkg://{weighted_sum.__name__}" and not written:
        name = f"{key}.reward_kwargs.step_rewards"
        raise SettingError(name, written, why=why, valid="true", fix=Line(f"++{name}=true"))


STEP_REWARDS = Feature(
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
    checks={"steps": check_steps, "reported-steps": check_reported_steps},
    trainer="steps.trainer:ProcessSupervisionMixin",
    agent_loops=dict.fromkeys(AGENT_LOOPS.values(), "rollout.agent_loops"),
)
