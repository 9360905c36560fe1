"""Check that all responses come from verl's single-turn agent loop, for a feature that reads one turn."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import AGENT_LOOP, ROLLOUT, setting
from grpo_verl_ext.verl_plugin.config import SINGLE_TURN_LOOPS


def check_loop(config: DictConfig, why: str) -> None:
    """Refuse another agent loop.

    Raises:
        SettingError: with the reason.
    """
    loop = setting(config, AGENT_LOOP)
    if loop not in SINGLE_TURN_LOOPS:
        fix = Line(f"{AGENT_LOOP}={SINGLE_TURN_LOOPS[0]}")
        raise SettingError(AGENT_LOOP, loop, why=why, valid=SINGLE_TURN_LOOPS[:2], fix=fix)


def check_manager(config: DictConfig, why: str) -> None:
    """Refuse an agent loop manager of the user's.

    Raises:
        SettingError: with the reason.
    """
    key = f"{ROLLOUT}.agent.agent_loop_manager_class"
    manager = setting(config, key)
    if manager is not None:
        raise SettingError(key, manager, why=why, valid="null", fix=Line(f"{key}=null"))


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
