"""Make the folder of a task of reasoning-gym."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo_verl_ext.rewards.reasoning_gym import library, make_dataset
from grpo_verl_ext.tasks.folders import FoundManifest, Outcome, PreparedFolder, PreparedFolderError
from grpo_verl_ext.utils.console import ending
from grpo_verl_ext.utils.files import cache_root


@dataclass(frozen=True)
class GymSettings:
    """All that a task's rows depend on, besides the version of reasoning-gym.

    Attributes:
        task: a name in reasoning-gym's registry.
        config: options of that task's configuration.
        train, test: numbers of prompts.
        system: system prompt; empty for none.
    """

    task: str
    config: Mapping[str, Any]
    train: int
    test: int
    seed: int
    system: str


def folder_of(task: str, seed: int) -> Path:
    """Return the folder of the preset ``+task=reasoning_gym``."""
    return cache_root() / "reasoning_gym" / task / f"seed-{seed}"


def prepare(
    settings: GymSettings, folder: Path, *, force: bool, on_wait: Callable[[], None] = lambda: None
) -> Outcome[FoundManifest]:
    """Make ``folder`` with training and test data, or do nothing if it is there.

    Raises:
        ModuleNotFoundError: reasoning-gym is missing.
        PreparedFolderError: an unknown task or option, a value that the task refuses, a verifier that raises,
            fewer different questions than asked for; or see `PreparedFolder.make`.
    """
    _check(settings)
    content = {**asdict(settings), "reasoning_gym": version("reasoning-gym")}
    place = PreparedFolder(folder, FoundManifest)
    return place.make(content, lambda unfinished: _draw(unfinished, settings), force=force, on_wait=on_wait)


def _check(settings: GymSettings) -> None:
    """Refuse what reasoning-gym does not know, with what it does."""
    known = library().factory.DATASETS
    if settings.task not in known:
        raise _unknown("--task", settings.task, known)
    options = [field.name for field in fields(known[settings.task][1]) if field.name not in ("seed", "size")]
    for name in settings.config:
        if name not in options:
            raise _unknown(f"an option of {settings.task}, --config", name, options)
    try:
        json.dumps(settings.config)  # the manifest and the rows have it
        make_dataset(settings.task, settings.config, seed=0, size=1)
    except Exception as error:
        raise PreparedFolderError(
            f"{settings.task} refuses --config {dict(settings.config)}: {error or type(error).__name__}. Its "
            f"options are {', '.join(options)}"
        ) from error


def _unknown(what: str, name: str, valid: Mapping[str, Any] | list[str]) -> PreparedFolderError:
    nearest = get_close_matches(name, valid, n=1, cutoff=0.0) or ["none"]
    return PreparedFolderError(
        f"{what} is {name!r}; valid are {', '.join(sorted(valid))}. The nearest is {nearest[0]}"
    )


def _draw(folder: Path, settings: GymSettings) -> dict[str, Any]:
    """Run `draw` in a process whose hashes are the same every time."""
    finished = subprocess.run(
        [sys.executable, "-m", "grpo_verl_ext.tasks.reasoning_gym.draw", folder],
        input=json.dumps(asdict(settings)),
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        last = finished.stderr.strip().rpartition("\n")[2]
        raise PreparedFolderError(
            last or f"the process that draws them ended with {ending(finished.returncode)}"
        )
    left_out: dict[str, Any] = json.loads(finished.stdout.strip().rpartition("\n")[2])
    return {"found": {"left_out": left_out}}
