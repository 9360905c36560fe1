"""The records of the features step rewards and process reward model, and the checks of their settings.

``grpo_process`` must get step rewards, and each token the advantage of its own steps; the process reward
model needs steps to score, an estimator that reads them, and the right head.
"""

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.grpo import GRPO_LOSS
from grpo_verl_ext.catalogue.grpo_process import GRPO_PROCESS
from grpo_verl_ext.catalogue.requires import OUR_MODES, NoneWith, Trainer, refused
from grpo_verl_ext.rewards import weighted_sum
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import AGENT_LOOP, LOSS, SECTION, setting
from grpo_verl_ext.verl_plugin.batch.agent_names import check_loops_of_data
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, REWARD_MANAGER, Options
from grpo_verl_ext.verl_plugin.features import OTHER_REWARDS, Feature
from grpo_verl_ext.verl_plugin.model_files import check_head

_STEP_SECTION = f"{SECTION}.step_reward_model"


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
    by_function = setting(config, "reward.reward_manager.name") in ("naive", REWARD_MANAGER)
    if (
        catalogue.learns_from_steps(config)
        and setting(config, AGENT_LOOP) in AGENT_LOOPS.values()
        and by_function
    ):
        _check_function(
            config, "algorithm.adv_estimator=grpo_process needs the step_rewards of a reward function"
        )


def check_step_reward_model(config: DictConfig) -> None:
    """Refuse a process reward model that gets no steps, that no estimator reads, or with another head.

    Raises:
        SettingError: one of these.
    """
    check_step_use(config)
    options, key = Options.from_config(config.algorithm).step_reward_model, f"{_STEP_SECTION}.path"
    what = "token classifier with two outputs"
    if options is not None:
        if options.path is None:
            raise SettingError(key, None, valid=f"a {what}", fix=f"+{key}=<folder>")
        check_head(options.path, key=key, head="ForTokenClassification", outputs=2, what=what)


def check_step_use(config: DictConfig) -> None:
    """Refuse the same but for the model's folder, which may not be there yet.

    Raises:
        SettingError: the estimator reads no steps, or the reward function returns none.
    """
    options = Options.from_config(config.algorithm)
    if options.step_reward_model is None:
        return
    if not catalogue.learns_from_steps(config):
        raise SettingError(
            "algorithm.adv_estimator",
            config.algorithm.adv_estimator,
            why=f"{_STEP_SECTION} is set, and this estimator reads no step rewards",
            valid=GRPO_PROCESS.estimator.name,
            fix=Line(f"+algo={GRPO_PROCESS.name}"),
        )
    needed = f"{_STEP_SECTION} needs the step_ends of a reward function"
    _check_function(config, needed)
    if options.reward_model is not None and not options.reward_model.rule_weight:
        name = f"{SECTION}.reward_model.rule_weight"
        why = f"the reward function is not called then, and {needed}"
        raise SettingError(name, options.reward_model.rule_weight, why=why, fix=Line(f"{name}=1.0"))


def _check_function(config: DictConfig, needed: str) -> None:
    key = "reward.custom_reward_function"
    function = config.reward.custom_reward_function
    arguments = function.get("reward_kwargs") or {}
    if function.path is None:
        raise SettingError(
            f"{key}.path", None, why=needed, valid="a file or module with yours", fix=f"{key}.path=<file>"
        )
    written = arguments.get("step_rewards")
    if function.path == f"pkg://{weighted_sum.__name__}" and not written:
        name = f"{key}.reward_kwargs.step_rewards"
        raise SettingError(name, written, why=needed, valid="true", fix=Line(f"++{name}=true"))


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
STEP_REWARD_MODEL = Feature(
    reward_models=("step_reward_model",), checks={"step-reward-model": check_step_reward_model}
)
