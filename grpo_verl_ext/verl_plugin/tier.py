"""What of this package the installed verl can do; ``docs/verl_versions.md`` has the table.

With a verl of the lower tier, `registration` registers presets, estimators and losses and nothing else, and
`preflight.tier` refuses trainings that ask for more.
"""

import functools
import os
from collections.abc import Iterator

from grpo_verl_ext.utils.errors import Line, SettingError
from grpo_verl_ext.utils.which_verl import FROM, INSTALL, LOSSES_ONLY, which_verl

MODULES_VARIABLE = "VERL_USE_EXTERNAL_MODULES"
"""verl's environment variable for modules that each of its processes imports."""
PLUGIN = "grpo_verl_ext.plugin"
LOAD = f"export {MODULES_VARIABLE}={PLUGIN}"
"""The line that loads the plugin where verl looks for none."""


@functools.cache
def has_losses_only() -> bool:
    """Whether the installed verl is of the lower tier, `WhichVerl.has_losses_only`."""
    return which_verl().has_losses_only


def needs_newer(key: str, value: object, without: Line | None = None) -> SettingError:
    """Return the error for a setting that needs a verl of the upper tier.

    Args:
        key: of verl's configuration.
        value: what the training gives it.
        without: what to type to train without it on this verl; None where that would be another algorithm.
    """
    words = without.words if without is not None else ()
    return SettingError(
        key,
        value,
        why=f"verl {which_verl().version} {LOSSES_ONLY}",
        valid=f"verl >= {FROM}",
        fix=Line(*words, more=f", or {INSTALL}") if words else INSTALL,
    )


def modules(named: str) -> str:
    """Return the modules that the processes of a training are to import, separated by commas.

    Args:
        named: those that its configuration has.
    """
    return ",".join(dict.fromkeys([*_split(os.environ.get(MODULES_VARIABLE, "")), *_split(named), PLUGIN]))


def _split(modules: str) -> Iterator[str]:
    return (name for name in map(str.strip, modules.split(",")) if name)
