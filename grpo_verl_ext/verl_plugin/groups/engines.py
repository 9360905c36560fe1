"""On which of verl's engines the drift of a group is measured."""

from grpo_verl_ext.verl_plugin.errors import SettingError
from grpo_verl_ext.verl_plugin.keys import ACTOR

DRIFT_ENGINES = ("fsdp", "fsdp2")
"""Values of ``actor.strategy`` whose inference pass in the middle of an update was tested."""


def check_drift_engine(strategy: str) -> None:
    """Refuse a forward pass between updates on an engine where nobody tried it.

    Megatron's last pipeline stage alone has log-probs; torchtitan and veomni need accelerators to be tried.

    Raises:
        SettingError: GVPO's drift would have to be measured there.
    """
    if strategy not in DRIFT_ENGINES:
        key = f"{ACTOR}.strategy"
        raise SettingError(
            key,
            strategy,
            why="GVPO's drift between updates is not measured there",
            valid=(*DRIFT_ENGINES, "one update per rollout"),
            fix=f"{key}=fsdp2",
        )
