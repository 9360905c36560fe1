"""Where runs are trained: here, one after the other, or as jobs of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from grpo_verl_ext.ablation.settings import AblationError
from grpo_verl_ext.runs.metrics import Metrics
from grpo_verl_ext.runs.verl_run import VerlRun


class Place(Protocol):
    """What the runner has to know of it."""

    @property
    def address(self) -> str | None:
        """Of the cluster's dashboard; None is here."""

    @property
    def at_once(self) -> int:
        """So many runs."""

    def train(self, run: VerlRun, on_metrics: Callable[[Metrics], None]) -> Iterator[None]:
        """Train to the end, yielding whenever others may have their turn.

        Raises:
            ProcessFailedError: verl failed.
            AblationError: the place is lost.
        """


class _Here:
    address = None
    at_once = 1

    def train(self, run: VerlRun, on_metrics: Callable[[Metrics], None]) -> Iterator[None]:
        run.go(on_metrics)
        yield from ()


HERE = _Here()
"""A process of this machine, which ends with us."""


def place_at(ray_address: str | None, jobs: int, say: Callable[[str], None]) -> Place:
    """The cluster, if an address is given.

    Raises:
        AblationError: there is none at the address, or several jobs are to run without one.
    """
    if ray_address is not None:
        from grpo_verl_ext.ablation.cluster import Cluster, connected

        address = ray_address.rstrip("/")
        return Cluster(connected(address), address, jobs, say)
    if jobs > 1:
        raise AblationError(
            f"--jobs is {jobs}; without a cluster valid is 1, for each run has the machine to itself. "
            f"Type: --ray-address http://HOST:8265"
        )
    return HERE
