"""GRPO and its relatives for verl; this module has their pure mathematics and does not import verl.

Its names are imported when they are first used (PEP 562), for torch takes seconds to import.
"""

# ruff: noqa: F401  # the names of `__all__`, for type checkers

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import DictConfig

    from grpo_verl_ext.algorithms import (
        advantages,
        aggregation,
        groups,
        gvpo,
        gvpo_terms,
        kl,
        process,
        surrogate,
    )
    from grpo_verl_ext.algorithms.advantages import (
        batch_scaled,
        centred,
        group_scaled,
        leave_one_out,
        outcome_advantages,
        per_prompt_token,
    )
    from grpo_verl_ext.algorithms.aggregation import (
        local_token_mean,
        prompt_mean,
        sequence_mean_constant_length,
        sequence_mean_token_mean,
        token_mean,
    )
    from grpo_verl_ext.algorithms.groups import dense_group_ids
    from grpo_verl_ext.algorithms.kl import k1, k2, k3, with_k2_gradient
    from grpo_verl_ext.algorithms.process import process_advantages
    from grpo_verl_ext.algorithms.surrogate import clipped_surrogate, geometric_mean_surrogate

    def compose(overrides: Sequence[str], *, config_path: str = ..., config_name: str = ...) -> DictConfig:
        """Return the configuration with which ``python -m verl.trainer.main_ppo OVERRIDES`` would train."""


__version__ = "0.1.0"

_INTERNAL = ("ragged", "validation")
_FILES = (file.stem for file in (Path(__file__).parent / "algorithms").glob("[!_]*.py"))
_MODULES = sorted({*_FILES} - {*_INTERNAL})

__all__ = [*_MODULES, "compose", "losses"]  # noqa: PLE0604  # of text alone
__all__ += ["batch_scaled", "centred", "group_scaled", "leave_one_out", "outcome_advantages"]
__all__ += ["clipped_surrogate", "dense_group_ids", "geometric_mean_surrogate", "per_prompt_token"]
__all__ += ["local_token_mean", "prompt_mean", "sequence_mean_constant_length", "sequence_mean_token_mean"]
__all__ += ["k1", "k2", "k3", "process_advantages", "token_mean", "with_k2_gradient"]

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        """Import the mathematics and return the function or module of this name."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "losses":
            return import_module(f"{__name__}.{name}")
        if name == "compose":
            return import_module(f"{__name__}.verl_plugin.compose").composed
        modules = {each: import_module(f"{__name__}.algorithms.{each}") for each in _MODULES}
        globals()[name] = modules.get(name) or next(
            vars(each)[name] for each in modules.values() if name in vars(each)
        )
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
