"""Run verl's ``main_ppo`` in this process, with a preset, if the plugin is loaded here and in the workers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import DictConfig
from verl.trainer import main_ppo

from grpo_verl_ext.launch.plugin_check import NoPluginError, check_workers
from grpo_verl_ext.launch.values import words_of
from grpo_verl_ext.verl_plugin.compose import IN_PACKAGE, folder_of


def run_training(preset: str, overrides: Sequence[str], **options: str) -> None:
    """Train; verl does all of it.

    Args:
        preset: of ``+algo=``.
        overrides: the other words of verl's command line.
        options: Hydra's ``config_path`` and ``config_name``, if given.

    Raises:
        SystemExit: the training is refused, or Hydra reports its failure.
    """
    path = options.get("config_path", IN_PACKAGE)
    if not path.startswith(IN_PACKAGE):  # which Hydra reads as a part of the module that is imported here
        options["config_path"] = folder_of(path)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    verls_run_ppo = main_ppo.run_ppo

    def run_ppo(config: DictConfig, task_runner_class: Any) -> None:
        verls_run_ppo(config, task_runner_class=_AsksFirst(task_runner_class))

    main_ppo.run_ppo = run_ppo
    # Where `python3 -m verl.trainer.main_ppo` has them; Ray and Hydra read them.
    sys.argv = [inspect.getfile(main_ppo), *flags, *words_of(preset, overrides)]
    main: Callable[[], None] = main_ppo.main  # Hydra reads its argument from sys.argv
    main()


class _AsksFirst:
    """Stands for the class of verl's task runner, whose first actor verl starts right after Ray."""

    def __init__(self, task_runner_class: Any) -> None:
        self._class = task_runner_class

    def options(self, **options: Any) -> _AsksFirst:
        """Return the same with options of the actor."""
        return _AsksFirst(self._class.options(**options))

    def remote(self) -> Any:
        """Start the actor, unless a worker would train without the plugin."""
        try:
            check_workers()
        except NoPluginError as error:
            sys.exit(f"grpo_verl_ext: {error}")
        return self._class.remote()
