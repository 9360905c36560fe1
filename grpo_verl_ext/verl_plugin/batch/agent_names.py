"""Check which agent loops the rows of the training data ask for, which verl takes before its default."""

from collections.abc import Iterable

import pyarrow
import pyarrow.parquet
from omegaconf import DictConfig

from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.keys import setting
from grpo_verl_ext.verl_plugin.config import AGENT_LOOPS
from grpo_verl_ext.verl_plugin.model_files import home_resolved


def check_loops_of_data(config: DictConfig, refused: Iterable[str] | None, why: str, fix: str) -> None:
    """Refuse rows of parquet files on this machine whose ``agent_name`` is a loop that a feature cannot use.

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
