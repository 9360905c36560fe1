"""The records of the features that measure, with what each was tested with."""

from omegaconf import DictConfig

from grpo_verl_ext.catalogue.requires import OUR_MODES, If, In, NoneWith, Trainer, refused
from grpo_verl_ext.utils.errors import Line
from grpo_verl_ext.utils.keys import ACTOR, AGENT_LOOP, ROLLOUT, SECTION
from grpo_verl_ext.verl_plugin.agent_loops import check_loops_of_data
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS
from grpo_verl_ext.verl_plugin.features import Feature, has_option

_SEEDS = f"{SECTION}.seed_requests"


def _check_seeds(config: DictConfig) -> None:
    """Refuse data that ask for an agent loop which passes no seeds on."""
    if has_option("seed_requests")(config):
        check_loops_of_data(config, None, f"{_SEEDS} needs one that passes seeds on", f"~{_SEEDS}")


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
    trainer=f"{__package__}.trainer:MeasureMixin",
)
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
_LOST_RESPONSES = Feature(
    name="lost-responses",
    used=has_option("lost_responses"),
    requires=refused(Trainer(OUR_MODES, "counts no lost responses")),
)
