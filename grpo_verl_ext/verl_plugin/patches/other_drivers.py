"""Ask for support in verl's other drivers, which validate a configuration inside Ray, or never.

Patch of ``verl.trainer.main_ppo.run_ppo``, which the drivers of one-step-off and fully async training import
and call before they start Ray. Only what is known of every driver is checked: `preflight.support`.
"""

import functools
import sys
from typing import Any

from omegaconf import DictConfig


def patch(main_ppo: Any) -> None:
    """Put `preflight.support` in front of verl's start of a training; its message ends the driver."""
    original = main_ppo.run_ppo

    @functools.wraps(original)
    def run_ppo(config: DictConfig, *args: Any, **kwargs: Any) -> None:
        from grpo_verl_ext.verl_plugin.findings import SettingError
        from grpo_verl_ext.verl_plugin.preflight.support import check_support

        try:
            check_support(config)
        except SettingError as error:
            sys.exit(f"grpo_verl_ext: {error}")
        original(config, *args, **kwargs)

    main_ppo.run_ppo = run_ppo
