"""Which Ray a command on this machine uses: one of its own, unless an address was given.

``ray.init`` without an address joins whatever ``ray start`` left on the machine, also somebody else's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VARIABLE = "RAY_ADDRESS"
KEY = "ray_kwargs.ray_init.address"
"""verl hands the section ``ray_kwargs.ray_init`` to ``ray.init``."""
OWN = "local"
"""The address with which ``ray.init`` starts a Ray, whatever else runs on the machine."""
OF_AN_OWN_RAY = (
    "ray_kwargs.ray_init.num_cpus=null",
    "++ray_kwargs.ray_init.num_gpus=null",
    "++ray_kwargs.ray_init._system_config=null",
)
"""How large verl makes a Ray of its own, as +platform=cpu does; ray.init refuses these in a running one."""

_ADDRESS = re.compile(r"\+*ray_kwargs\.ray_init(?:\.address=|=.*\baddress:)\s*['\"]?(?P<address>[^'\",}\s]*)")
"""An override of the key, alone or in a dictionary."""


@dataclass(frozen=True)
class WhichRay:
    """The Ray that a training, or a question to Ray, is going to use."""

    address: str
    """As ``ray.init`` takes it."""
    given_by: str | None = None
    """The environment variable or key that names it; None if nobody does."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """What verl's command line needs, after all other overrides."""
        return (f"++{KEY}={OWN}",) if self.address == OWN else OF_AN_OWN_RAY

    @property
    def words(self) -> str:
        """A line for the terminal."""
        if self.given_by is None:
            return f"Ray: one of its own, for neither {VARIABLE} nor {KEY} names another"
        if self.address == OWN:
            return f"Ray: one of its own, as {self.given_by}={OWN} says"
        return f"Ray: the one at {self.address}, which {self.given_by} names"


def which_ray(overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> WhichRay:
    """The last address that the overrides give, else that of the environment, else a Ray of its own.

    Args:
        overrides: of verl's command line.
        environment: this process's by default.
    """
    found = [match["address"] for match in map(_ADDRESS.match, overrides) if match]
    return by_address(found[-1] if found and found[-1] != "null" else None, environment)


def by_address(said: str | None, environment: Mapping[str, str] | None = None) -> WhichRay:
    """The same, of the address that verl's configuration has."""
    of_environment = (os.environ if environment is None else environment).get(VARIABLE, "")
    if said and not (said == "auto" and of_environment):  # ray.init prefers the environment to "auto", too
        return WhichRay(said, KEY)
    if of_environment:
        return WhichRay(of_environment, VARIABLE)
    return WhichRay(OWN)
