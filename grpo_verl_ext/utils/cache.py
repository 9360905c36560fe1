"""The user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``$GRPO_VERL_EXT_CACHE``, else ``grpo_verl_ext`` in ``$XDG_CACHE_HOME``, else in ``~/.cache``."""
    own = os.environ.get("GRPO_VERL_EXT_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo_verl_ext"
