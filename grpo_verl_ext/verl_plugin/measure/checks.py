"""The records of the features that measure, and the checks of their settings before any rollout."""

from functools import reduce
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.requires import OUR_MODES, If, In, NoneWith, Trainer, refused
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import ACTOR, AGENT_LOOP, ROLLOUT
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, GOLD_RESPONSES, SEED_REQUESTS, Options
from grpo_verl_ext.verl_plugin.features import Feature, has_option
from grpo_verl_ext.verl_plugin.model_files import home_resolved
from grpo_verl_ext.verl_plugin.rollout.checks import check_loops_of_data


def _check_gold_responses(config: DictConfig) -> None:
    """Refuse parquet files of this machine without what is measured; the trainer checks their rows."""
    options, key = Options.from_config(config.algorithm).gold_responses, f"{GOLD_RESPONSES}.files"
    if options is None or (config.data.get("custom_cls") or {}).get("path"):
        return  # a class of the user's may read anything
    import pyarrow.parquet  # heavy, and this module is loaded in all processes of a training

    for file in map(home_resolved, options.names):
        if file.suffix != ".parquet" or not file.is_file():
            continue
        try:
            content = pyarrow.parquet.ParquetFile(file)
        except (pyarrow.ArrowException, OSError) as error:
            why = f"that is not a readable parquet file ({error}); it was left in place"
            raise SettingError(key, str(file), why=why, fix=f"{key}=<another file>") from error
        if content.metadata.num_rows == 0:
            raise SettingError(key, str(file), why="it has no row to measure", fix=f"{key}=<another file>")
        if reduce(_inside, options.response_key.split("."), content.schema_arrow) is None:
            raise SettingError(
                f"{GOLD_RESPONSES}.response_key",
                options.response_key,
                why=f"{file} has no such column",
                valid=f"a dotted key of {', '.join(content.schema_arrow.names)}",
                fix=f"{GOLD_RESPONSES}.response_key=<one of them>",
            )


def _inside(fields: Any, name: str) -> Any:
    """Return the type of a column or of a field in one; None if there is none."""
    index = fields.get_field_index(name) if hasattr(fields, "get_field_index") else -1
    return None if index < 0 else fields.field(index).type


def _check_seeds(config: DictConfig) -> None:
    """Refuse data that ask for an agent loop which passes no seeds on."""
    if Options.from_config(config.algorithm).seed_requests is not None:
        why = f"{SEED_REQUESTS} needs one that passes seeds on"
        check_loops_of_data(config, None, why, f"~{SEED_REQUESTS}")


_GOLD_MEASUREMENT = Feature(
    name="gold-responses",
    used=has_option("gold_responses"),
    requires=refused(
        Trainer(OUR_MODES, "does not measure the responses"),
        *(
            NoneWith(
                f"{ACTOR}.{engine}.router_replay.mode",
                "R3",
                "replays the experts of a rollout, and these responses have none",
                when=If(f"{ACTOR}.strategy", (engine,)),
                line=Line(f"{ACTOR}.{engine}.router_replay.mode=disabled"),
            )
            for engine in ("megatron", "veomni")
        ),
    ),
    checks={"gold-responses": _check_gold_responses},
    done_by_trainer={"gold_responses.files": "measures them"},
    trainer=".measure.trainer:GoldResponseMixin",
)
_TRAINING_REWARDS = Feature(trainer=".measure.trainer:TrainingRewardMixin")
_REQUEST_SEEDS = Feature(
    name="seeds",
    used=has_option("seed_requests"),
    requires=refused(
        Trainer(
            ("grpo_ext_sync", "sync"),
            "numbers no responses, or draws the same random numbers again for an interrupted one",
        ),
        In(f"{ROLLOUT}.name", ("vllm",), "has requests that take no seed, or was not tested"),
        In(AGENT_LOOP, tuple(AGENT_LOOPS.values()), "passes no seeds on"),
    ),
    checks={"seeds": _check_seeds},
)
