"""The record of the feature ``stored_responses``; its trainer checks the responses themselves."""

from omegaconf import DictConfig

from grpo_verl_ext import catalogue
from grpo_verl_ext.catalogue import requires
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import BYPASS, ROLLOUT, SECTION, setting
from grpo_verl_ext.verl_plugin.agent_loops import SINGLE_TURN, VERLS_MANAGER
from grpo_verl_ext.verl_plugin.config import STORED_AGENT_LOOP, Options
from grpo_verl_ext.verl_plugin.features import Feature, has_option

_KEY = f"{SECTION}.stored_responses"


def _check_stored_responses(config: DictConfig) -> None:
    """Refuse a share that is no whole number of samples."""
    options, n = Options.from_config(config.algorithm).stored_responses, config.actor_rollout_ref.rollout.n
    if options is not None and abs(options.share * n - (taken := round(options.share * n))) > 1e-6:
        raise SettingError(
            f"{_KEY}.share",
            options.share,
            why=f"{ROLLOUT}.n is {n}, and {options.share * n:g} samples cannot be taken",
            valid=f"a multiple of 1/{n}",
            fix=Line(f"{_KEY}.share={max(taken, 1) / n:g}"),
        )


_STORED_RESPONSES = Feature(
    name="stored-responses",
    used=has_option("stored_responses"),
    requires=requires.refused(
        requires.Trainer(requires.OUR_MODES, "takes no stored responses"),
        requires.Trainer(
            ("grpo_ext_sync",),
            "trains on a response in a later step than the one that sampled it: its age would be too small, "
            "and its log-probs those of another policy",
            when=requires.Where(
                "responses come from a history, and the share is not 0",
                lambda config: setting(config, f"{_KEY}.source") == "history" and requires.is_stored(config),
            ),
        ),
        requires.AtLeast(
            f"{_KEY}.max_age",
            1,
            "does not limit the age of a history's responses: set at least an epoch's steps",
            when=requires.If(f"{_KEY}.source", ("history",)),
            line=f"+{_KEY}.max_age=<training steps>",
        ),
        requires.Null(
            f"{_KEY}.max_age",
            "is of a history, and responses of the data have no age",
            when=requires.If(f"{_KEY}.source", ("data", None)),
            line=Line(f"~{_KEY}.max_age", more=f", or +{_KEY}.source=history"),
        ),
        SINGLE_TURN,
        VERLS_MANAGER,
        requires.Off(BYPASS, "makes another anchor of GVPO for each response", when=catalogue.has_groups),
    ),
    checks={"stored-responses": _check_stored_responses},
    trainer=f"{__package__}.trainer:StoredResponsesMixin",
    agent_loops={STORED_AGENT_LOOP: "grpo_verl_ext.verl_plugin.agent_loops.loops"},
)
