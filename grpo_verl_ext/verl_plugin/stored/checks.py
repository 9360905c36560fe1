"""The record of the feature ``stored_responses``, and the checks of its settings before any rollout.

The trainer checks the responses themselves.
"""

from collections.abc import Mapping

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR, BYPASS, MODE, ROLLOUT, SECTION, setting
from grpo_verl_ext.verl_plugin.config import STORED_AGENT_LOOP, Options, StoredResponsesOptions, written
from grpo_verl_ext.verl_plugin.features import OUR_ASYNC_MODES, Feature, Refusal, Uses, has_option
from grpo_verl_ext.verl_plugin.rollout.single_turn import check_loop, check_manager

_KEY = f"{SECTION}.stored_responses"


def _has(name: str, value: str) -> Uses:
    """Return whether ``stored_responses`` has this value of an option."""

    def check(config: DictConfig) -> bool:
        stored = written(config.algorithm).get("stored_responses")
        return isinstance(stored, Mapping) and stored.get(name) == value

    return check


def _keeps_history(config: DictConfig) -> bool:
    """Whether a history is kept: with a share of 0 there is none."""
    return _has("source", "history")(config) and bool(
        written(config.algorithm)["stored_responses"].get("share")
    )


def check_stored_responses(config: DictConfig) -> None:
    """Refuse a share that is no whole number of samples, and settings that leave no single meaning.

    Raises:
        SettingError: the first wrong setting.
    """
    options = Options.from_config(config.algorithm).stored_responses
    if options is None:
        return
    _check_share(options.share, config.actor_rollout_ref.rollout.n)
    _check_age(options)
    _check_old_policy(options, config)
    check_loop(config, f"{_KEY} is set, and a stored response is one turn")
    check_manager(
        config, f"{_KEY} is set, and only verl's own manager runs the agent loop that takes stored responses"
    )


def _check_share(share: float, n: int) -> None:
    taken = round(share * n)
    if abs(share * n - taken) > 1e-6:
        raise SettingError(
            f"{_KEY}.share",
            share,
            why=f"{ROLLOUT}.n is {n}, and {share * n:g} samples cannot be taken",
            valid=f"a multiple of 1/{n}",
            fix=Line(f"{_KEY}.share={max(taken, 1) / n:g}"),
        )


def _check_age(options: StoredResponsesOptions) -> None:
    if options.source == "history" and options.max_age is None:
        raise SettingError(
            f"{_KEY}.max_age",
            None,
            why=f"{_KEY}.source is history, which keeps responses up to an age",
            valid="an integer ≥ 1, at least the steps of an epoch, after which a prompt comes again",
            fix=f"+{_KEY}.max_age=<training steps>",
        )
    if options.source == "data" and options.max_age is not None:
        raise SettingError(
            f"{_KEY}.max_age",
            options.max_age,
            why=f"{_KEY}.source is data, whose responses have no age",
            valid="null",
            fix=Line(f"~{_KEY}.max_age", more=f", or +{_KEY}.source=history"),
        )


def _check_old_policy(options: StoredResponsesOptions, config: DictConfig) -> None:
    bypasses = setting(config, BYPASS, False)
    if not catalogue.has_groups(config):
        if bypasses and options.share and options.old_log_probs == "actor":
            raise SettingError(
                f"{_KEY}.old_log_probs",
                "actor",
                why="algorithm.rollout_correction.bypass_mode=true takes recorded log-probs for old ones",
                valid="recorded",
                fix=Line(
                    f"++{_KEY}.old_log_probs=recorded",
                    more=", or algorithm.rollout_correction.bypass_mode=false",
                ),
            )
        return
    if options.old_log_probs == "recorded":
        raise SettingError(
            f"{_KEY}.old_log_probs",
            "recorded",
            why="the anchor of GVPO is one policy for all responses of a prompt, and there is nothing to "
            "correct: its minimiser is the same for every sampling distribution",
            valid="actor",
            fix=Line(f"~{_KEY}.old_log_probs"),
        )
    if bypasses:
        raise SettingError(
            BYPASS,
            True,
            why=f"{_KEY} is set, and the recorded log-probs would make another anchor of GVPO for each "
            "response",
            valid="false",
            fix=Line("algorithm.rollout_correction.bypass_mode=false"),
        )


STORED_RESPONSES = Feature(
    uses={
        "stored_responses": has_option("stored_responses"),
        "recorded": _has("old_log_probs", "recorded"),
        "history": _keeps_history,
    },
    without_our_mode="nothing takes the responses of algorithm.grpo_ext.stored_responses there",
    refusals=(
        Refusal(
            ("history",),
            OUR_ASYNC_MODES,
            MODE,
            "algorithm.grpo_ext.stored_responses.source is history, and there a response is trained on in a "
            "later step than the one that sampled it: its age would be too small, and its log-probs those of "
            "another policy",
            "grpo_ext_sync",
            Line(f"{MODE}=grpo_ext_sync"),
        ),
        Refusal(
            ("recorded",),
            ("kl_in_reward",),
            "algorithm.use_kl_in_reward",
            "algorithm.grpo_ext.stored_responses.old_log_probs is recorded, and verl then takes the KL of "
            "the policy that wrote a response",
            "false",
            f"algorithm.use_kl_in_reward=false {ACTOR}.use_kl_loss=true, or "
            "algorithm.grpo_ext.stored_responses.old_log_probs=actor",
        ),
    ),
    checks={"stored-responses": check_stored_responses},
    trainer="stored.trainer:StoredResponsesMixin",
    agent_loops={STORED_AGENT_LOOP: "stored.rollout"},
)
