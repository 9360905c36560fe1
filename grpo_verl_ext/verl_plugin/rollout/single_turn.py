"""Check from which agent loop responses come, for features that read one turn or need a loop of this package."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig

from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import AGENT_LOOP, ROLLOUT, setting
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, SINGLE_TURN_LOOPS
from grpo_verl_ext.verl_plugin.model_files import home_resolved


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


def check_loops_of_data(config: DictConfig, refused: Iterable[str] | None, why: str, fix: str) -> None:
    """Refuse rows of the training data that ask for an agent loop that this package does not follow.

    Of parquet files on this machine; verl takes a row's ``agent_name`` before its default.

    Args:
        refused: the loops to refuse; None for all but this package's.

    Raises:
        SettingError: with the reason.
    """
    for name in _loops_of_data(config):
        if name not in AGENT_LOOPS.values() if refused is None else name in refused:
            raise SettingError(
                "data.train_files",
                setting(config, "data.train_files"),
                seen=f"the training data ask for agent_name={name}, and {why}",
                valid=tuple(AGENT_LOOPS.values()),
                fix=Line(fix, more=", or give data without agent_name"),
            )


def _loops_of_data(config: DictConfig) -> list[str]:
    files = setting(config, "data.train_files") or []
    found = set[str]()
    for file in [files] if isinstance(files, str) else files:
        path = home_resolved(str(file))
        if path.suffix != ".parquet" or not path.is_file():
            continue
        try:
            if "agent_name" in pyarrow.parquet.read_schema(path).names:
                column = pyarrow.parquet.read_table(path, columns=["agent_name"]).column(0)
                found.update(name for name in column.unique().to_pylist() if name is not None)
        except (OSError, pyarrow.ArrowException):
            continue  # the check "files" says so
    return sorted(found)
