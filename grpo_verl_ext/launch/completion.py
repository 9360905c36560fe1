"""Complete the words of a command line: presets, this package's groups, and keys with their values.

Neither verl nor torch is imported, for a shell waits for each completion.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpo_verl_ext
from grpo_verl_ext.config import foreign_algorithms
from grpo_verl_ext.utils.documents import leaves

_ROOT = Path(grpo_verl_ext.__file__).parent
_CONFIG = _ROOT / "config"
_GROUPS = sorted({file.parent.name for file in _CONFIG.glob("*/*.yaml")})
_OPTIONS = _ROOT / "verl_plugin" / "config.py"
"""Has the class ``Options``, whose import takes seconds."""
_VERLS_DEFAULTS = Path("trainer", "config", "_generated_ppo_trainer.yaml")


def complete_preset(incomplete: str) -> list[str]:
    """Return the presets that begin with a word, those of other packages included."""
    names = {*_values("algo"), *(entry.name for entry in foreign_algorithms())}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_override(words: Sequence[str], algo: str | None, incomplete: str) -> list[str]:
    """Return what an override can become.

    A key comes with its value: of the preset, else verl's default; nothing where that depends on other keys.

    Args:
        words: those before it. Bash makes three words of ``+algo=g``.
        algo: the preset of the command line.
    """
    *before, last = ["", *words]
    if last == "=" or last.lstrip("+") in _GROUPS:
        group = before[-1] if last == "=" else last
        return [each.partition("=")[2] for each in _group_words(f"{group}={incomplete}")]
    return [*_group_words(incomplete), *_key_words(algo, incomplete)]


def _group_words(incomplete: str) -> list[str]:
    words = (f"+{group}={name}" for group in _GROUPS for name in _names(group))
    return [word for word in words if word.startswith(incomplete)]


def _names(group: str) -> list[str]:
    return complete_preset("") if group == "algo" else _values(group)


def _values(group: str) -> list[str]:
    return sorted(file.stem for file in (_CONFIG / group).glob("*.yaml"))


def _key_words(algo: str | None, incomplete: str) -> list[str]:
    package = find_spec("verl")
    (verl,) = package.submodule_search_locations if package and package.submodule_search_locations else [""]
    values = dict(leaves(_read(Path(verl) / _VERLS_DEFAULTS)))
    values |= dict(leaves(_read(_CONFIG / "algo" / f"{algo}.yaml")))
    section = "algorithm.grpo_ext"
    added = {f"+{section}.{name}": "" for name in _options() if f"{section}.{name}" not in values}
    return [
        f"{key}={_typed(value)}"
        for key, value in (values | added).items()
        if key.startswith(incomplete) and not key.endswith("._target_")
    ]


def _options() -> list[str]:
    """The fields of the section ``algorithm.grpo_ext``, from the source."""
    (options,) = (
        node
        for node in ast.parse(_OPTIONS.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "Options"
    )
    return [
        str(node.target.id)
        for node in options.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def _read(file: Path) -> Any:
    """The content of a YAML file; nothing where there is none."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built
    return yaml.load(file.read_bytes(), loader) if file.is_file() else {}


def _typed(value: Any) -> str:
    """A value as it is typed; empty where it is a list, a section or refers to other keys."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    plain = isinstance(value, str) and re.fullmatch(r"[\w./:,~-]+", value)
    return str(value) if plain else "null" if value is None else ""
