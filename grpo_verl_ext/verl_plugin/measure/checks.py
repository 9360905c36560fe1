"""The records of the features that measure, and the checks of their settings before any rollout.

They are the measurements of wanted and of rewarded responses, the metrics of training rewards, and the seeds
of requests. The trainer checks the rows of the files.
"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR, MODE, ROLLOUT, SECTION
from grpo_verl_ext.verl_plugin.batch.agent_names import check_loops_of_data
from grpo_verl_ext.verl_plugin.config import (
    AGENT_LOOPS,
    GOLD_RESPONSES,
    REWARDED_RESPONSES,
    SEED_REQUESTS,
    SEEDED_ROLLOUTS,
    Options,
)
from grpo_verl_ext.verl_plugin.features import OUR_ASYNC_MODES, Feature, Refusal, has_option
from grpo_verl_ext.verl_plugin.model_files import home_resolved


def check_gold_responses(config: DictConfig) -> None:
    """Refuse files without the wanted responses, where this process sees them, and replayed experts.

    Raises:
        SettingError: the first wrong setting.
    """
    options = Options.from_config(config.algorithm).gold_responses
    if options is None:
        return
    _refuse_replay(config, GOLD_RESPONSES)
    _check_files(config, options.names, GOLD_RESPONSES, {"response_key": options.response_key})


def check_rewarded_responses(config: DictConfig) -> None:
    """Refuse files without responses or rewards, replayed experts, and GVPO without a fixed anchor.

    Raises:
        SettingError: the first wrong setting.
    """
    whole = Options.from_config(config.algorithm)
    options = whole.rewarded_responses
    if options is None:
        return
    if whole.gvpo_anchor != "ref":
        key = f"{SECTION}.gvpo_anchor"
        raise SettingError(
            key,
            whole.gvpo_anchor,
            why=f"{REWARDED_RESPONSES} measures the distance to GVPO's minimiser around the reference",
            valid="ref",
            fix=Line(f"{key}=ref", more=f", or ~{REWARDED_RESPONSES}"),
        )
    _refuse_replay(config, REWARDED_RESPONSES)
    keys = {name: getattr(options, name) for name in ("responses_key", "rewards_key")}
    _check_files(config, options.names, REWARDED_RESPONSES, keys)


def _check_files(config: DictConfig, names: list[str], section: str, keys: dict[str, str]) -> None:
    if (config.data.get("custom_cls") or {}).get("path"):
        return  # its files may be anything
    for name in names:
        file = home_resolved(name)
        if file.suffix == ".parquet" and file.is_file():
            _check_file(file, section, keys)


def _refuse_replay(config: DictConfig, section: str) -> None:
    key = f"{ACTOR}.{config.actor_rollout_ref.actor.strategy}.router_replay.mode"
    if OmegaConf.select(config, key) == "R3":
        raise SettingError(
            key,
            "R3",
            why=f"the responses of {section} have no rollout whose experts could be replayed",
            valid=("disabled", "R2"),
            fix=Line(f"~{section}"),
        )


def _check_file(file: Path, section: str, keys: dict[str, str]) -> None:
    import pyarrow.parquet  # heavy, and this module is loaded in all processes of a training

    key = f"{section}.files"
    try:
        content = pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise SettingError(
            key,
            str(file),
            why=f"that is not a readable parquet file ({error}); it was left in place",
            fix=f"{key}=<another file>",
        ) from error
    if content.metadata.num_rows == 0:
        raise SettingError(key, str(file), why="it has no row to measure", fix=f"{key}=<another file>")
    for name, column in keys.items():
        if not _has_column(content.schema_arrow, column):
            key = f"{section}.{name}"
            raise SettingError(
                key,
                column,
                why=f"{file} has no such column",
                valid=f"a dotted key of {', '.join(content.schema_arrow.names)}",
                fix=f"{key}=<one of them>",
            )


def _has_column(schema: Any, dotted: str) -> bool:
    fields = schema
    for name in dotted.split("."):
        index = fields.get_field_index(name) if hasattr(fields, "get_field_index") else -1
        if index < 0:
            return False
        fields = fields.field(index).type
    return True


def check_seeds(config: DictConfig) -> None:
    """Refuse seeds that no agent loop would pass on, or that the rollout's engine would not take.

    Raises:
        SettingError: the first wrong setting.
    """
    if Options.from_config(config.algorithm).seed_requests is None:
        return
    rollout = config.actor_rollout_ref.rollout
    if rollout.name not in SEEDED_ROLLOUTS:
        key = f"{ROLLOUT}.name"
        raise SettingError(
            key,
            rollout.name,
            why=f"{SEED_REQUESTS} needs requests that take a seed",
            valid=SEEDED_ROLLOUTS,
            fix=Line(f"{key}={SEEDED_ROLLOUTS[0]}", more=f", or ~{SEED_REQUESTS}"),
        )
    loop = rollout.agent.default_agent_loop
    if loop not in AGENT_LOOPS.values():
        key = f"{ROLLOUT}.agent.default_agent_loop"
        raise SettingError(
            key,
            loop,
            why=f"{SEED_REQUESTS} needs an agent loop that passes seeds on",
            valid=tuple(AGENT_LOOPS.values()),
            fix=Line(f"{key}={AGENT_LOOPS.get(loop, 'grpo_ext_single_turn_agent')}"),
        )
    check_loops_of_data(config, None, f"{SEED_REQUESTS} needs one that passes seeds on", f"~{SEED_REQUESTS}")


GOLD_MEASUREMENT = Feature(
    uses={"gold_responses": has_option("gold_responses")},
    is_measurement=True,
    without_our_mode=f"the responses of {GOLD_RESPONSES} are not measured there",
    checks={"gold-responses": check_gold_responses},
    done_by_trainer={"gold_responses.files": "measures them"},
    trainer="measure.gold_responses:GoldResponseMixin",
)
REWARDED_MEASUREMENT = Feature(
    uses={"rewarded_responses": has_option("rewarded_responses")},
    is_measurement=True,
    without_our_mode=f"the responses of {REWARDED_RESPONSES} are not measured there",
    checks={"rewarded-responses": check_rewarded_responses},
    done_by_trainer={"rewarded_responses.files": "measures them"},
    trainer="measure.rewarded_responses:RewardedResponseMixin",
)
TRAINING_REWARDS = Feature(trainer="measure.training_rewards:TrainingRewardMixin")
REQUEST_SEEDS = Feature(
    uses={"seed_requests": has_option("seed_requests")},
    is_measurement=True,
    without_v1=f"{SEED_REQUESTS} needs a number for each response to a prompt, which that trainer does not "
    "give",
    refusals=(
        Refusal(
            ("seed_requests",),
            ("colocate_async", "separate_async", *OUR_ASYNC_MODES),
            MODE,
            f"with {SEED_REQUESTS} an interrupted response would draw the same random numbers again",
            ("sync", "grpo_ext_sync"),
            Line(f"{MODE}=grpo_ext_sync"),
        ),
    ),
    checks={"seeds": check_seeds},
)
