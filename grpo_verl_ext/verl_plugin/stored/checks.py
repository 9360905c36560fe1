"""The record of the feature ``stored_responses``, and the checks of its settings before any rollout.

The trainer checks the responses themselves.
"""

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue.requires import OUR_MODES, AtLeast, If, In, Null, Off, Trainer, refused
from grpo_verl_ext.catalogue.verls import KL_IN_REWARD, ON_KL_IN_LOSS
from grpo_verl_ext.catalogue.weights import is_stored
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import BYPASS, ROLLOUT, SECTION, setting
from grpo_verl_ext.verl_plugin.config import STORED_AGENT_LOOP, Options
from grpo_verl_ext.verl_plugin.features import Feature, has_option
from grpo_verl_ext.verl_plugin.rollout.single_turn import SINGLE_TURN, VERLS_MANAGER

_KEY = f"{SECTION}.stored_responses"


_OLD = f"{_KEY}.old_log_probs"


def _keeps_history(config: DictConfig) -> bool:
    """Whether responses come from a history, of which there is none with a share of 0."""
    return setting(config, f"{_KEY}.source") == "history" and is_stored(config)


def _bypasses_unrecorded(config: DictConfig) -> bool:
    """Whether a loss of tokens takes recorded log-probs for old ones."""
    return bool(setting(config, BYPASS)) and is_stored(config) and not catalogue.has_groups(config)


def _takes_recorded_kl(config: DictConfig) -> bool:
    """Whether the KL in the reward has a coefficient, and recorded log-probs to start from."""
    return setting(config, _OLD) == "recorded" and bool(setting(config, "algorithm.kl_ctrl.kl_coef"))


def check_stored_responses(config: DictConfig) -> None:
    """Refuse a share that is no whole number of samples.

    Raises:
        SettingError: names the nearest that is one.
    """
    options = Options.from_config(config.algorithm).stored_responses
    if options is None:
        return
    n = config.actor_rollout_ref.rollout.n
    taken = round(options.share * n)
    if abs(options.share * n - taken) > 1e-6:
        raise SettingError(
            f"{_KEY}.share",
            options.share,
            why=f"{ROLLOUT}.n is {n}, and {options.share * n:g} samples cannot be taken",
            valid=f"a multiple of 1/{n}",
            fix=Line(f"{_KEY}.share={max(taken, 1) / n:g}"),
        )


STORED_RESPONSES = Feature(
    name="stored-responses",
    used=has_option("stored_responses"),
    requires=refused(
        Trainer(OUR_MODES, "takes no stored responses"),
        Trainer(
            ("grpo_ext_sync",),
            "trains on a response in a later step than the one that sampled it: its age would be too small, "
            "and its log-probs those of another policy",
            when=_keeps_history,
        ),
        AtLeast(
            f"{_KEY}.max_age",
            1,
            "sets no age up to which a history keeps responses: at least an epoch's steps",
            when=If(f"{_KEY}.source", ("history",)),
            line=f"+{_KEY}.max_age=<training steps>",
        ),
        Null(
            f"{_KEY}.max_age",
            "is of a history, and responses of the data have no age",
            when=If(f"{_KEY}.source", ("data", None)),
            line=Line(f"~{_KEY}.max_age", more=f", or +{_KEY}.source=history"),
        ),
        SINGLE_TURN,
        VERLS_MANAGER,
        In(
            _OLD,
            ("recorded",),
            "has none of the log-probs that bypass mode takes for old ones",
            when=_bypasses_unrecorded,
            line=Line(f"++{_OLD}=recorded", more=f", or {BYPASS}=false"),
        ),
        In(
            _OLD,
            ("actor", None),
            "makes another anchor of GVPO for each response",
            when=catalogue.has_groups,
            line=Line(f"~{_OLD}"),
        ),
        Off(BYPASS, "makes another anchor of GVPO for each response", when=catalogue.has_groups),
        Off(
            KL_IN_REWARD,
            "is then the KL of the policy that wrote a response",
            when=_takes_recorded_kl,
            line=ON_KL_IN_LOSS,
        ),
    ),
    checks={"stored-responses": check_stored_responses},
    trainer="stored.trainer:StoredResponsesMixin",
    agent_loops={STORED_AGENT_LOOP: "stored.rollout"},
)
