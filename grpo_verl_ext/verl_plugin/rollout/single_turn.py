"""Rows by which all responses come from verl's single-turn agent loop, for a feature that reads one turn."""

from collections.abc import Mapping
from typing import Any

from grpo_verl_ext.catalogue.requires import In, Null
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import AGENT_LOOP, ROLLOUT
from grpo_verl_ext.verl_plugin.config import SINGLE_TURN_LOOPS

SINGLE_TURN = In(AGENT_LOOP, SINGLE_TURN_LOOPS, "may have several turns", refuse=True)
"""For a feature that reads responses of one turn."""
VERLS_MANAGER = Null(
    f"{ROLLOUT}.agent.agent_loop_manager_class",
    "need not run this package's agent loop",
    refuse=True,
)


def refuse_other_loop(row: Mapping[str, Any], why: str, fix: str) -> None:
    """Refuse a row of the training data that asks for another agent loop, which verl would take.

    Raises:
        SettingError: with the reason.
    """
    name = row.get("agent_name")
    if name is not None and name not in SINGLE_TURN_LOOPS:
        raise SettingError(
            AGENT_LOOP,
            name,
            seen=f"the training data ask for agent_name={name}, and {why}",
            valid=SINGLE_TURN_LOOPS[:2],
            fix=Line(fix, more=", or data without agent_name"),
        )
