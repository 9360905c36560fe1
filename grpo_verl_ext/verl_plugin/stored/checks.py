"""Check the settings of stored responses before any rollout; the trainer checks the responses themselves."""

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.utils.errors import SettingError
from grpo_verl_ext.utils.keys import ROLLOUT, SECTION, setting
from grpo_verl_ext.verl_plugin.config import SINGLE_TURN_LOOPS, Options, StoredResponsesOptions

KEY = f"{SECTION}.stored_responses"


def check_stored_responses(config: DictConfig) -> None:
    """Refuse a share that is no whole number of samples, and settings that leave no single meaning.

    `preflight.support` checks trainers.

    Raises:
        SettingError: the first wrong setting.
    """
    options = Options.from_config(config.algorithm).stored_responses
    if options is None:
        return
    _check_share(options.share, config.actor_rollout_ref.rollout.n)
    _check_age(options)
    _check_old_policy(options, config)
    _check_agent_loop(config.actor_rollout_ref.rollout.agent)


def _check_share(share: float, n: int) -> None:
    taken = round(share * n)
    if abs(share * n - taken) > 1e-6:
        raise SettingError(
            f"{KEY}.share",
            share,
            why=f"{ROLLOUT}.n is {n}, and {share * n:g} samples cannot be taken",
            valid=f"a multiple of 1/{n}",
            fix=f"{KEY}.share={max(taken, 1) / n:g}",
        )


def _check_age(options: StoredResponsesOptions) -> None:
    if options.source == "history" and options.max_age is None:
        raise SettingError(
            f"{KEY}.max_age",
            None,
            why=f"{KEY}.source is history, which keeps responses up to an age",
            valid="an integer ≥ 1, at least the steps of an epoch, after which a prompt comes again",
            fix=f"+{KEY}.max_age=<training steps>",
        )
    if options.source == "data" and options.max_age is not None:
        raise SettingError(
            f"{KEY}.max_age",
            options.max_age,
            why=f"{KEY}.source is data, whose responses have no age",
            valid="null",
            fix=f"~{KEY}.max_age, or +{KEY}.source=history",
        )


def _check_old_policy(options: StoredResponsesOptions, config: DictConfig) -> None:
    bypasses = setting(config, "algorithm.rollout_correction.bypass_mode", False)
    if not catalogue.has_groups(config):
        if bypasses and options.share and options.old_log_probs == "actor":
            raise SettingError(
                f"{KEY}.old_log_probs",
                "actor",
                why="algorithm.rollout_correction.bypass_mode=true takes recorded log-probs for old ones",
                valid="recorded",
                fix=f"++{KEY}.old_log_probs=recorded, or algorithm.rollout_correction.bypass_mode=false",
            )
        return
    if options.old_log_probs == "recorded":
        raise SettingError(
            f"{KEY}.old_log_probs",
            "recorded",
            why="the anchor of GVPO is one policy for all responses of a prompt, and there is nothing to "
            "correct: its minimiser is the same for every sampling distribution",
            valid="actor",
            fix=f"~{KEY}.old_log_probs",
        )
    if bypasses:
        raise SettingError(
            "algorithm.rollout_correction.bypass_mode",
            True,
            why=f"{KEY} is set, and the recorded log-probs would make another anchor of GVPO for each "
            "response",
            valid="false",
            fix="algorithm.rollout_correction.bypass_mode=false",
        )


def _check_agent_loop(agent: DictConfig) -> None:
    loop = agent.default_agent_loop
    if loop not in SINGLE_TURN_LOOPS:
        key = f"{ROLLOUT}.agent.default_agent_loop"
        raise SettingError(
            key,
            loop,
            why=f"{KEY} is set, and a stored response is one turn",
            valid=SINGLE_TURN_LOOPS[:2],
            fix=f"{key}={SINGLE_TURN_LOOPS[0]}",
        )
    manager = agent.get("agent_loop_manager_class")
    if manager is not None:
        key = f"{ROLLOUT}.agent.agent_loop_manager_class"
        raise SettingError(
            key,
            manager,
            why=f"{KEY} is set, and only verl's own manager runs the agent loop that takes stored responses",
            valid="null",
            fix=f"{key}=null",
        )
