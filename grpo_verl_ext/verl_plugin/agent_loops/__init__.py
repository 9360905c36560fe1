"""Agent loops: of this package, and those that rows of the data ask for, before verl's default one."""

import os
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig

from grpo_verl_ext.catalogue.requires import In, Null
from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import AGENT_LOOP, ROLLOUT, setting
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS, STORED_AGENT_LOOP

_SINGLE_TURN = ("single_turn_agent", AGENT_LOOPS["single_turn_agent"], STORED_AGENT_LOOP)
SINGLE_TURN = In(AGENT_LOOP, _SINGLE_TURN, "may have several turns", refuse=True)
"""For a feature that reads responses of one turn."""
VERLS_MANAGER = Null(
    f"{ROLLOUT}.agent.agent_loop_manager_class", "need not run this package's agent loop", refuse=True
)


def refuse_other_loop(row: Mapping[str, Any], why: str, fix: str) -> None:
    """Refuse a row of the training data that asks for a loop of several turns, or an unknown one."""
    name = row.get("agent_name")
    if name is not None and name not in _SINGLE_TURN:
        raise _wrong_loop(name, why, _SINGLE_TURN[:2], fix)


def check_loops_of_data(config: DictConfig, refused: Collection[str] | None, why: str, fix: str) -> None:
    """Refuse parquet files on this machine that ask for one of these loops; None: for all but ours."""
    ours = tuple(AGENT_LOOPS.values())
    files = setting(config, "data.train_files") or []
    for file in [files] if isinstance(files, str) else files:
        try:
            table = pyarrow.parquet.read_table(os.path.expanduser(str(file)), columns=["agent_name"])
        except (OSError, pyarrow.ArrowException):
            continue  # it has no such column, or the check "files" says what is wrong
        for name in sorted(filter(None, table.column(0).unique().to_pylist())):
            if name not in ours if refused is None else name in refused:
                raise _wrong_loop(name, why, ours, fix)


def _wrong_loop(name: str, why: str, valid: tuple[str, ...], fix: str) -> SettingError:
    seen = f"the training data ask for agent_name={name}, and {why}"
    line = Line(fix, more=", or give data without agent_name")
    return SettingError("data.train_files", name, seen=seen, valid=valid, fix=line)
