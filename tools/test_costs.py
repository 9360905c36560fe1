"""Write what a run's tests cost into ``build/test-costs.json``, by folder, for ``tools/budget.py``."""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import processes
import psutil
import pytest

FILE = Path(__file__).parents[1] / "build" / "test-costs.json"
_costs = defaultdict[str, Counter[str]](Counter)


def _spent() -> Counter[str]:
    """CPU seconds so far, with those of children that have ended, and processes started for tests."""
    own = [os.getpid(), forkserver._forkserver._forkserver_pid]  # type: ignore[attr-defined]
    seconds = sum(sum(psutil.Process(pid).cpu_times()[:4]) for pid in own if pid is not None)
    return Counter(seconds=seconds, processes=len(processes.STARTED))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Add what a test has cost to its folder."""
    before = _spent()
    result = yield
    after, folder = _spent(), "/".join(Path(item.location[0]).parent.parts[:2])
    after.update(tests=1, trainings=int(item.get_closest_marker("e2e") is not None))
    _costs[folder].update({name: value - before[name] for name, value in after.items()})
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a process of pytest-xdist has counted."""
    for folder, cost in getattr(node, "workeroutput", {}).get("costs", {}).items():
        _costs[folder].update(cost)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Hand on what this process has counted, or write the file; Hypothesis spends more on what fails."""
    costs = {folder: {name: round(each, 1) for name, each in cost.items()} for folder, cost in _costs.items()}
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["costs"] = costs
    elif costs and exitstatus == 0:
        asked = [rank for rank in ("long", "ci") if session.config.getoption(rank)]
        rank = (asked or ["quick"])[0]
        kept = json.loads(FILE.read_text()) if FILE.exists() else {}
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(json.dumps({**kept, rank: {**kept.get(rank, {}), **costs}}, indent=1))
