"""Run our checks where verl checks a composed configuration: in the driver, before it starts Ray.

Patch of ``verl.utils.config.validate_config``, which verl's ``main`` calls. verl has no hook there; a Hydra
callback would run with our presets only, and Hydra turns a callback's exceptions into warnings.
"""

import functools
import sys
from typing import Any

from omegaconf import DictConfig


def patch(config_module: Any) -> None:
    """Put `preflight` in front of verl's own validation; the one message of an error ends the driver."""
    original = config_module.validate_config

    @functools.wraps(original)
    def validate_config(config: DictConfig, *args: Any, **kwargs: Any) -> None:
        from grpo_verl_ext.verl_plugin import lost_parts, preflight

        try:
            preflight.check(config)
        except ValueError as error:
            sys.exit(f"grpo_verl_ext: {error}")
        for warning in preflight.warnings(config):
            silence = f"(silent with +{preflight.SILENCE}=[{warning.check}])"
            print(f"grpo_verl_ext: warning: {warning.message} {silence}", file=sys.stderr, flush=True)
        original(config, *args, **kwargs)
        lost_parts.watch()

    config_module.validate_config = validate_config
