"""OmegaConf resolvers for arithmetic in presets: ``${grpo_ext.NAME:ARGUMENTS}``.

Every process that imports verl has them: verl composes in the driver and resolves in its TaskRunner.
"""

from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import OmegaConf

from grpo_verl_ext.utils.files import cache_root
from grpo_verl_ext.verl_plugin.cpu import sizes


def share(whole: int, part: int, of: int) -> int:
    """Return ``whole · part / of``, rounded down, at least 1: ``${grpo_ext.share:512,4096,20480}`` is 102."""
    return max(1, whole * part // of)


def _equal(value: object, other: object) -> bool:
    """Whether two values are equal: ``${grpo_ext.equal:${algorithm.grpo_ext.gvpo_anchor},ref}``."""
    return value == other


def _all_null(*values: object) -> bool:
    """Whether all values are null."""
    return all(value is None for value in values)


def _cache() -> str:
    """Return the folder that ``grpo-verl-ext prepare`` writes into, by this process's environment."""
    return str(cache_root())


_RESOLVERS: Mapping[str, Callable[..., Any]] = {
    "grpo_ext.cache": _cache,
    "grpo_ext.share": share,
    "grpo_ext.equal": _equal,
    "grpo_ext.all_null": _all_null,
    "grpo_ext.cpu.slots": sizes.slots,
    "grpo_ext.cpu.max_model_len": sizes.max_model_len,
    "grpo_ext.cpu.kv_cache_bytes": sizes.kv_cache_bytes,
    "grpo_ext.cpu.bucket_megabytes": sizes.bucket_megabytes,
    "grpo_ext.cpu.micro_batch_tokens": sizes.micro_batch_tokens,
}
"""Name → function. None raises on a wrong setting; the checks of `preflight` report it."""


def install_resolvers() -> None:
    """Register the resolvers with OmegaConf in this process; may be repeated."""
    for name, function in _RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
