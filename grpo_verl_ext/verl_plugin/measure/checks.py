"""The records of the features that measure, with what each was tested with."""

from grpo_verl_ext.catalogue.requires import OUR_MODES, In, Trainer, refused
from grpo_verl_ext.utils.keys import AGENT_LOOP, ROLLOUT, SECTION
from grpo_verl_ext.verl_plugin.agent_loops import check_loops_of_data
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS
from grpo_verl_ext.verl_plugin.features import Feature, has_option

_SEEDS = f"{SECTION}.seed_requests"


_GOLD_MEASUREMENT = Feature(
    name="gold-responses",
    used=has_option("gold_responses"),
    requires=refused(Trainer(OUR_MODES, "does not measure the responses")),
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
    # of data that ask for an agent loop which passes no seeds on
    checks={
        "seeds": lambda config: (
            check_loops_of_data(config, None, f"{_SEEDS} needs one that passes seeds on", f"~{_SEEDS}")
            if has_option("seed_requests")(config)
            else None
        )
    },
)
_LOST_RESPONSES = Feature(
    name="lost-responses",
    used=has_option("lost_responses"),
    requires=refused(Trainer(OUR_MODES, "counts no lost responses")),
)
