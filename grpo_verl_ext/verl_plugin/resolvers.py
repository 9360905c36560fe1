"""OmegaConf resolvers for arithmetic in presets: ``${grpo_ext.NAME:ARGUMENTS}``.

Every process that imports verl has them: verl composes in the driver and resolves in its TaskRunner.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import OmegaConf

from grpo_verl_ext.utils.files import cache_root
from grpo_verl_ext.verl_plugin.cpu import sizes


def share(whole: int, part: int, of: int) -> int:
    """Return ``whole · part / of``, rounded down, at least 1: ``${grpo_ext.share:512,4096,20480}`` is 102."""
    return max(1, whole * part // of)


_RESOLVERS: Mapping[str, Callable[..., Any]] = {
    "grpo_ext.cache": lambda: str(cache_root()),  # by the environment of the process that resolves
    "grpo_ext.share": share,
    "grpo_ext.equal": operator.eq,
    "grpo_ext.all_null": lambda *values: all(value is None for value in values),
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
