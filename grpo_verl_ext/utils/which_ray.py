"""Choose the Ray that a command on this machine uses: one of its own, unless an address was given.

``ray.init`` without an address joins any Ray that ``ray start`` left on the machine, even another user's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

_VARIABLE = "RAY_ADDRESS"
_KEY = "ray_kwargs.ray_init.address"
"""verl hands the section ``ray_kwargs.ray_init`` to ``ray.init``."""
OWN = "local"
"""The address with which ``ray.init`` always starts a new Ray."""
OF_AN_OWN_RAY = (
    "ray_kwargs.ray_init.num_cpus=null",
    "++ray_kwargs.ray_init.num_gpus=null",
    "++ray_kwargs.ray_init._system_config=null",
)
"""Overrides that remove the sizes +platform=cpu gives a new Ray; ray.init refuses sizes when it joins one."""

_ADDRESS = re.compile(r"\+*ray_kwargs\.ray_init(?:\.address=|=.*\baddress:)\s*['\"]?(?P<address>[^'\",}\s]*)")
"""Matches an override of the address, alone or in a dictionary."""


@dataclass(frozen=True)
class WhichRay:
    """The Ray that a training, or another command, will use."""

    address: str
    """As ``ray.init`` takes it."""
    given_by: str | None = None
    """The environment variable or key that gives the address; None if none does."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Overrides that verl's command line needs, after all others."""
        return (f"++{_KEY}={OWN}",) if self.address == OWN else OF_AN_OWN_RAY

    @property
    def words(self) -> str:
        """A sentence for the terminal that says which Ray is used and why."""
        if self.given_by is None:
            return f"Ray: one of its own, for neither {_VARIABLE} nor {_KEY} names another"
        if self.address == OWN:
            return f"Ray: one of its own, as {self.given_by}={OWN} says"
        return f"Ray: the one at {self.address}, which {self.given_by} names"


def which_ray(overrides: Sequence[str] = (), address: str | None = None) -> WhichRay:
    """Return the Ray of an address in verl's configuration, else that of the environment, else its own.

    Without an ``address`` it is the last one of the overrides.
    """
    found = [address, *(match["address"] for match in map(_ADDRESS.match, overrides) if match)]
    said = None if found[-1] == "null" else found[-1]
    of_environment = os.environ.get(_VARIABLE, "")
    if said and not (said == "auto" and of_environment):  # ray.init prefers the environment to "auto", too
        return WhichRay(said, _KEY)
    return WhichRay(of_environment, _VARIABLE) if of_environment else WhichRay(OWN)
