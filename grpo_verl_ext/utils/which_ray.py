"""Choose the Ray that a command on this machine uses: one of its own, unless an address was given.

``ray.init`` without an address joins any Ray that ``ray start`` left on the machine, even another user's.
"""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

_VARIABLE = "RAY_ADDRESS"
_KEY = "ray_kwargs.ray_init.address"
"""verl hands the section ``ray_kwargs.ray_init`` to ``ray.init``."""
_OWN = "local"
"""The address with which ``ray.init`` always starts a new Ray."""
OF_AN_OWN_RAY = (
    "ray_kwargs.ray_init.num_cpus=null",
    "++ray_kwargs.ray_init.num_gpus=null",
    "++ray_kwargs.ray_init._system_config=null",
)
"""Overrides that remove the sizes +platform=cpu gives a new Ray; ray.init refuses sizes when it joins one."""

_ADDRESS = re.compile(r"\+*ray_kwargs\.ray_init(?:\.address=|=.*\baddress:)\s*['\"]?(?P<address>[^'\",}\s]*)")
"""Matches an override of the address, alone or in a dictionary."""


class WhichRay(NamedTuple):
    """The Ray that a training, or another command, will use."""

    address: str
    """As ``ray.init`` takes it."""
    is_own: bool
    """Whether it is started for this command alone."""
    arguments: tuple[str, ...]
    """Overrides that verl's command line needs, after all others."""
    words: str
    """A sentence for the terminal that says which Ray is used and why."""


def which_ray(overrides: Sequence[str] = (), address: str | None = None) -> WhichRay:
    """Return the Ray of an address in verl's configuration, else that of the environment, else its own.

    Without an ``address`` it is the last one of the overrides.
    """
    found = [address, *(match["address"] for match in map(_ADDRESS.match, overrides) if match)]
    given, by, of_environment = found[-1], _KEY, os.environ.get(_VARIABLE, "")
    if given in (None, "", "null") or (given == "auto" and of_environment):  # as ray.init prefers it, too
        given, by = of_environment, _VARIABLE
    if given and given != _OWN:
        return WhichRay(given, False, OF_AN_OWN_RAY, f"Ray: the one at {given}, which {by} names")
    why = f"as {by}={_OWN} says" if given else f"for neither {_VARIABLE} nor {_KEY} names another"
    return WhichRay(_OWN, True, (f"++{_KEY}={_OWN}",), f"Ray: one of its own, {why}")
