"""Print a preset, the values of a training with their sources, and what differs from the paper."""

from __future__ import annotations

import json
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from grpo_verl_ext.catalogue import ALGORITHMS
from grpo_verl_ext.launch.values import Value, not_of_the_paper, replaced, values
from grpo_verl_ext.utils.console import make_console, print_table
from grpo_verl_ext.utils.errors import as_typed
from grpo_verl_ext.verl_plugin.compose import CONFIG_NAME


def print_head(preset: str, config: DictConfig | None, overrides: Sequence[str]) -> None:
    """Print the preset, its paper, and every value of it that the command replaces.

    Args:
        config: None where only Hydra knows the values.
    """
    console = make_console()
    console.print(f"{preset}: {ALGORITHMS[preset].paper}")
    for each in replaced(preset, config, overrides) if config is not None else ():
        console.print(f"  replaced: {each}")


def print_values(
    preset: str, config: DictConfig, overrides: Sequence[str], config_name: str = CONFIG_NAME
) -> None:
    """Print a table of values and sources, and what differs from the paper."""
    console = make_console()
    print_table(console, _table(list(values(preset, config, overrides, config_name))))
    console.print(f"differs from {ALGORITHMS[preset].paper}:")
    found = [*replaced(preset, config, overrides), *not_of_the_paper(preset, config)]
    for each in found or ["nothing that the preset sets"]:
        console.print(f"  {each}")


def print_json(
    preset: str, config: DictConfig, overrides: Sequence[str], config_name: str = CONFIG_NAME
) -> None:
    """Print the same as JSON."""
    rows = values(preset, config, overrides, config_name)
    content = {
        "preset": preset,
        "paper": ALGORITHMS[preset].paper,
        "values": [{"key": each.key, "value": _plain(each.value), "source": each.source} for each in rows],
        "replaced": replaced(preset, config, overrides),
        "not_of_the_paper": not_of_the_paper(preset, config),
    }
    print(json.dumps(content, indent=2, ensure_ascii=False))


def _table(rows: Sequence[Value]) -> Table:
    table = Table(title_justify="left")
    for name in ("key", "value", "source"):
        table.add_column(name, overflow="fold")
    for each in rows:
        table.add_row(each.key, as_typed(_plain(each.value)), each.source)
    return table


def _plain(value: object) -> object:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
